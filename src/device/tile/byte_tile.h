// A tile of fp8 e4m3 bytes in shared memory, which each product widens to 16-bit elements as it reads them: half of the
// memory and of its traffic, and no second way through it.
#pragma once

#include "device/tile/shared_tile.h"

namespace tilewise::device {

/// Rows x Depth bytes, for products of ElementType `Element`. Two bytes stand where matrix loads see one element.
template <int Element, int Rows, int Depth>
struct ByteTile {
  static constexpr int kElement = Element, kRows = Rows, kDepth = Depth;
  static constexpr int kChunkBytes = 16;
  SharedTile<kBf16, Rows, Depth / 2> pairs;

  /// 16 bytes: see SharedTile.
  TILEWISE_INLINE void* chunk(int base_row, int row, int base_chunk, int index) {
    return pairs.chunk(base_row, row, base_chunk, index);
  }
  TILEWISE_INLINE const void* chunk(int base_row, int row, int base_chunk, int index) const {
    return pairs.chunk(base_row, row, base_chunk, index);
  }
};

}  // namespace tilewise::device
