// A tile in fp32 for products without matrix instructions: depth after depth, so that a lane gets adjacent rows at
// once.
#pragma once

#include "device/product/config.h"
#include "device/tile/fragment.h"

namespace tilewise::device {

template <int Rows, int Depth>
struct FloatTile {
  static constexpr int kRows = Rows, kDepth = Depth;
  static constexpr int kLine = Rows + ProductConfig::kFloatPadding;
  alignas(128) float data[Depth * kLine];

  TILEWISE_INLINE const float* at(int row, int depth) const { return data + depth * kLine + row; }
  TILEWISE_INLINE float* at(int row, int depth) { return data + depth * kLine + row; }
};

}  // namespace tilewise::device
