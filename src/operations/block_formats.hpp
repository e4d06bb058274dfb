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
#include "operations/elements.hpp"

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

/// Throws for an element type of x that has no place beside its format.
inline void check_row_dtype(DType dtype, const BlockFormat& format) {
  if (format.defined() && dtype != format.element) {
    core::invalid_type("x: dtype must be ", to_string(format.element), " with x_format=", to_string(format), " (got ",
                       to_string(dtype), ")");
  }
  if (format.defined()) return;
  if (dtype == DType::fp8_e4m3) core::invalid_argument("x_format: must be given where x is fp8_e4m3 (got none)");
  if (!is_element_type(dtype))
    core::invalid_type("x: dtype must be f32, bf16, f16, f64 or fp8_e4m3 (got ", to_string(dtype), ")");
}
/// Throws unless `dtype` is f32, bf16 or f16, or f64 where that of x is.
inline void check_dtype_beside(std::string_view name, DType dtype, DType x) {
  if (x == DType::f64 ? dtype == DType::f64 : is_element_type(dtype) && dtype != DType::f64) return;
  core::invalid_type(name, ": dtype must be ", x == DType::f64 ? "f64" : "f32, bf16 or f16", " where that of x is ",
                     to_string(x), " (got ", to_string(dtype), ")");
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
