// Formats of quantised numbers: narrow elements with a scale for each block of them.
#pragma once

#include <cstdint>
#include <string_view>

#include "tilewise/cxx20.hpp"
#include "tilewise/export.h"
#include "tilewise/tensor.hpp"

namespace tilewise {

/// Value = element * scale (* global). A block is block_rows by block_columns of the last two dimensions, columns along
/// the summed one; at the ends it may be short. Of leading dimensions each index is a tensor of its own.
struct BlockFormat {
  static constexpr std::int64_t kAll = 0;

  DType element = DType::none;     ///< fp8_e4m3 or fp4_e2m1; none: numbers that are not quantised
  DType scale = DType::none;       ///< f32, fp8_e8m0 or fp8_e4m3
  std::int64_t block_rows = kAll;  ///< kAll: every row
  std::int64_t block_columns = kAll;
  bool global = false;  ///< one f32 for the whole matrix beside the scales

  [[nodiscard]] constexpr bool defined() const noexcept { return element != DType::none; }
  friend bool operator==(const BlockFormat&, const BlockFormat&) = default;
};

/// "none", "fp8_tensor", "fp8_row", "fp8_1x128", "fp8_128x128", the last two with "_e8m0", "mxfp8", "mxfp4" or "nvfp4":
/// the names in problem text and messages. "unknown" for any other combination.
[[nodiscard]] TILEWISE_EXPORT std::string_view to_string(const BlockFormat& format) noexcept;
/// The format of that name. Throws Error (invalid_argument) that begins with `argument`.
[[nodiscard]] TILEWISE_EXPORT BlockFormat parse_block_format(std::string_view name,
                                                             std::string_view argument = "format");

}  // namespace tilewise
