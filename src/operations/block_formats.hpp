// Formats of quantised rows and weights as operations see them: which fit, how many scales there are, and what they ask
// of implementations.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "core/ceil_div.hpp"
#include "core/features.hpp"
#include "core/message.hpp"
#include "formats/field.hpp"

namespace tilewise::operations {

inline constexpr std::int64_t kLargeBlock = 128;

/// Scales along a dimension of `size`, for blocks of so many. Of formats that nobody knows, which rules refuse, as if a
/// block had all.
[[nodiscard]] constexpr std::int64_t blocks_of(std::int64_t size, std::int64_t block) {
  return block > 0 ? core::ceil_div(std::max<std::int64_t>(size, 0), block) : 1;
}

[[nodiscard]] inline bool is_known(const BlockFormat& format) {
  return std::ranges::find(block_formats(), format) != block_formats().end();
}

/// Of rows that are quantised one by one, or all of them as one; or none.
[[nodiscard]] constexpr bool suits_rows(const BlockFormat& format) {
  return !format.defined() || (format.element == DType::fp8_e4m3 && format.block_rows != kLargeBlock);
}

/// Throws for a format `name` that rows can't have.
inline void check_row_format(std::string_view name, const BlockFormat& format) {
  if (is_known(format) && suits_rows(format)) return;
  core::invalid_argument(name, ": must be none, fp8_tensor, fp8_row, fp8_1x128, fp8_1x128_e8m0 or mxfp8 (got ",
                         to_string(format), ")");
}
/// Throws for one that nobody knows.
inline void check_weight_format(std::string_view name, const BlockFormat& format) {
  if (is_known(format)) return;
  core::invalid_argument(name,
                         ": must be none, fp8_tensor, fp8_row, fp8_1x128, fp8_128x128, the last two with _e8m0, mxfp8, "
                         "mxfp4 or nvfp4 (got ",
                         to_string(format), ")");
}

/// What a format of rows or weights asks for, by the names that operations' features share.
template <typename Feature>
void insert_format(core::FeatureSetOf<Feature>& set, const BlockFormat& format) {
  if (!format.defined()) return;
  if (format.element == DType::fp4_e2m1) return set.insert(format.global ? Feature::nvfp4 : Feature::mxfp4);
  if (format.block_columns == BlockFormat::kAll)
    return set.insert(format.block_rows == BlockFormat::kAll ? Feature::fp8_tensor : Feature::fp8_row);
  if (format.block_columns != kLargeBlock) return set.insert(Feature::mxfp8);
  set.insert(format.block_rows == kLargeBlock ? Feature::fp8_128x128 : Feature::fp8_1x128);
  if (format.scale == DType::fp8_e8m0) set.insert(Feature::e8m0_blocks);
}

}  // namespace tilewise::operations
