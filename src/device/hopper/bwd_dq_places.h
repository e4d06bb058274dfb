// Where dq's sums lie in the workspace: those of 16 queries as the accumulators of the warp that adds them, one run of
// bytes for TMA. Of 8 columns 64 bytes are a row's and those of the 8th row behind it.
#pragma once

#include "device/hopper/config.h"

namespace tilewise::device {

/// Where two warpgroups multiply dQ: of three chunks of 64 columns each has an outer one and half of the inner one.
struct DqHalves {
  static constexpr int32_t kOuter = 64, kInner = kOuter / 2, kCount = kOuter + kInner;
  static constexpr int32_t kWarpFloats = kDqRows * kCount, kHalfFloats = 4 * kWarpFloats;  // of a tile of 64 queries
  /// Of dq, where eight columns begin that a warp holds.
  TILEWISE_INLINE static int32_t column(int col_tile, int warpgroup) {
    const int32_t inner = col_tile - kOuter / 8;
    return inner < 0 ? 2 * kOuter * warpgroup + 8 * col_tile : kOuter + kInner * warpgroup + 8 * inner;
  }
};

/// Where a head's sums are, in floats.
template <auto C>
struct DqPlaces {
  static constexpr int32_t kCols = 32;  // that lie together whoever multiplies

  /// Of 16 queries.
  TILEWISE_INLINE static int64_t of_rows(int32_t first_row) {
    if constexpr (!C.own_dq) return static_cast<int64_t>(first_row) * C.head_dim;
    const int32_t of_tile = first_row % 64;
    return static_cast<int64_t>(first_row - of_tile) * C.head_dim + of_tile / kDqRows * DqHalves::kWarpFloats;
  }
  /// From there, of columns [kCols * index, kCols * (index + 1)).
  static constexpr int32_t of_columns(int32_t index) {
    constexpr int32_t kFloats = kDqRows * kCols, kAll = 2 * DqHalves::kCount / kCols;
    if (!C.own_dq) return index * kFloats;
    const bool second = index >= kAll / 2;
    const int32_t of_second = index == kAll / 2 ? kAll / 2 - 1 : index - kAll / 2 - 1;
    return second ? DqHalves::kHalfFloats + of_second * kFloats : index * kFloats;
  }
};

}  // namespace tilewise::device
