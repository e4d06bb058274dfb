// The words that users of other libraries bring for attention's options.
#pragma once

#include <span>
#include <string_view>

#include "core/visibility.hpp"

namespace tilewise::operations::attention {

/// What a word that is no key was meant as: a key, where it has one a value, and where it has one a second key.
struct Meaning {
  std::string_view key, value, other;
};

/// The meaning of a key that other libraries have, such as {"mask", "causal"} of "is_causal", else the nearest one;
/// keys are those of `known`, and "" where there is none.
[[nodiscard]] TILEWISE_INTERNAL Meaning meaning_of(std::string_view word, std::span<const std::string_view> known);

}  // namespace tilewise::operations::attention
