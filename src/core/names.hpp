// The names of enumerations in problem text, options and messages, and reading them back. Operations add theirs.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/message.hpp"
#include "core/spelling.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::core {

/// Names of an enumeration in the order of its values. (GCC exports specializations unless the template says
/// otherwise.)
template <typename Enum>
[[gnu::visibility("hidden")]] inline constexpr std::array<std::string_view, 0> kNamesOf{};
template <>
inline constexpr std::array<std::string_view, 13> kNamesOf<DType>{
    "none", "f32", "bf16", "f16", "f64", "bool", "u8", "i32", "i64", "fp8_e4m3", "fp8_e5m2", "fp8_e8m0", "fp4_e2m1"};
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<DeviceType>{"cpu", "cuda", "hip"};

template <typename Enum>
[[nodiscard]] constexpr std::string_view name_of(Enum value) {
  return kNamesOf<Enum>[static_cast<std::size_t>(value)];
}

/// Whether a number that came as the enumeration is one of its values.
template <typename Enum>
[[nodiscard]] constexpr bool is_named(Enum value) {
  return static_cast<std::size_t>(value) < kNamesOf<Enum>.size();
}

/// Dtypes that a problem may be of, for messages; the others are those of indices, flags and the like.
inline constexpr std::array<std::string_view, 5> kComputedDTypes{"f32", "bf16", "f16", "f64", "fp8_e4m3"};

/// The value called `name`. Throws an Error that begins with `argument`.
template <typename Enum>
[[nodiscard]] Enum value_of(std::string_view argument, std::string_view name) {
  for (std::size_t i = 0; i < kNamesOf<Enum>.size(); ++i) {
    if (kNamesOf<Enum>[i] == name) return static_cast<Enum>(i);
  }
  if constexpr (std::same_as<Enum, DType>) refuse_word(argument, name, kComputedDTypes);
  refuse_word(argument, name, kNamesOf<Enum>);
}

/// The value at `index` in the order of kNamesOf. Throws an Error that begins with `argument`.
template <typename Enum>
[[nodiscard]] Enum value_at(std::string_view argument, std::int64_t index) {
  constexpr auto kCount = static_cast<std::int64_t>(kNamesOf<Enum>.size());
  if (index < 0 || index >= kCount) {
    invalid_argument(argument, ": must be 0 to ", kCount - 1, ", one of ", listed(kNamesOf<Enum>), " (got ", index,
                     ")");
  }
  return static_cast<Enum>(index);
}

}  // namespace tilewise::core
