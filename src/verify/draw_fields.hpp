// Random problems by an operation's one list of fields: whoever adds a field there has it drawn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "core/names.hpp"
#include "formats/field.hpp"
#include "tilewise/error.hpp"
#include "verify/random.hpp"
#include "verify/verifier.hpp"

namespace tilewise::verify {

/// Draws the fields of `base`, a valid problem, one after another. Enumerations and flags take any value, and
/// so do formats of blocks; draw_integer(key, field) returns that of an integer. A value that makes the problem
/// invalid, all later fields being their defaults, or that asks for a feature beyond the limits is drawn again, and in
/// the end left alone. So a later field may find itself no longer fit: it is drawn from its default then, not from what
/// base has.
template <typename Traits, typename DrawInteger>
typename Traits::Problem draw_fields(typename Traits::Problem base, Random& rng, const Limits& limits,
                                     const DrawInteger& draw_integer) {
  using Problem = typename Traits::Problem;
  constexpr int kTries = 8;
  /// Whether the problem is fine with its fields up to `count` and defaults beyond.
  const auto fits = [&limits](Problem problem, std::size_t count) {
    std::size_t index = 0;
    Traits::for_each_field(problem, [&](std::string_view, auto& field, const auto& by_default) {
      if constexpr (std::is_assignable_v<decltype(field), decltype(by_default)>) {
        if (index >= count) field = by_default;
      }
      ++index;
    });
    try {
      Traits::validate(problem);
    } catch (const Error&) {
      return false;
    }
    return (Traits::required_features(problem).bits() & ~limits.features) == 0;
  };
  Problem problem = base;
  std::size_t index = 0;
  Traits::for_each_field(problem, [&](std::string_view key, auto& field, const auto& by_default) {
    using Field = std::remove_cvref_t<decltype(field)>;
    ++index;
    if (key == "device") return;  // tensors are drawn on the host, and run elsewhere afterwards
    if constexpr (std::is_assignable_v<decltype(field), decltype(by_default)>) {
      if (!fits(problem, index)) field = by_default;  // which may depend on the fields before
    }
    const Field before = field;
    for (int n = 0; n < kTries; ++n) {
      if constexpr (std::is_same_v<Field, bool>) {
        field = rng.chance(0.35) != before;
      } else if constexpr (std::is_enum_v<Field>) {
        field = static_cast<Field>(rng.integer(0, static_cast<std::int64_t>(core::kNamesOf<Field>.size()) - 1));
      } else if constexpr (std::is_same_v<Field, BlockFormat>) {
        const std::span<const BlockFormat> formats = block_formats();  // none of them half of the time
        const std::int64_t last = static_cast<std::int64_t>(formats.size()) - 1;
        field = formats[static_cast<std::size_t>(rng.chance(0.5) ? 0 : rng.integer(0, last))];
      } else {
        field = draw_integer(key, field);
      }
      if (fits(problem, index)) return;
    }
    field = before;
  });
  return Traits::canonical(problem);
}

}  // namespace tilewise::verify
