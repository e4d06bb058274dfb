// The table of them.
#include "core/foreign_dtype.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace tilewise::core {
namespace {

/// Their numbers begin here, far from DType's.
constexpr std::size_t kFirst = 128;
constexpr std::array<std::string_view, 16> kForeign{"i8",
                                                    "i16",
                                                    "u16",
                                                    "u32",
                                                    "u64",
                                                    "complex32",
                                                    "complex64",
                                                    "complex128",
                                                    "float8_e3m4",
                                                    "float8_e4m3",
                                                    "float8_e4m3b11fnuz",
                                                    "float8_e4m3fnuz",
                                                    "float8_e5m2fnuz",
                                                    "float6_e2m3fn",
                                                    "float6_e3m2fn",
                                                    "f128"};

}  // namespace

std::optional<DType> foreign_dtype(std::string_view name) noexcept {
  const auto found = std::ranges::find(kForeign, name);
  if (found == kForeign.end()) return std::nullopt;
  return static_cast<DType>(kFirst + static_cast<std::size_t>(found - kForeign.begin()));
}

std::string_view foreign_name(DType dtype) noexcept {
  const auto number = static_cast<std::size_t>(dtype);
  return number >= kFirst && number < kFirst + kForeign.size() ? kForeign[number - kFirst] : std::string_view();
}

}  // namespace tilewise::core
