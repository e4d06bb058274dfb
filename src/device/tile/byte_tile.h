// Tiles of fp8 e4m3 bytes in shared memory: half of the memory and of its traffic. Products widen them to 16-bit
// elements as they read them, or multiply bytes.
#pragma once

#include "device/tile/shared_tile.h"

namespace tilewise::device {

/// Rows x Depth bytes that are multiplied as such. Two bytes stand where the tile's chunks have one element.
template <int Rows, int Depth>
struct ByteRows : SharedTile<kBf16, Rows, Depth / 2> {
  static constexpr int kElement = kE4m3, kDepth = Depth;
};
template <int Rows, int Depth>
TILEWISE_INLINE TilePart<ByteRows<Rows, Depth>> part_of(const ByteRows<Rows, Depth>& tile, int first_row = 0,
                                                        int first_col = 0) {
  return {tile, first_row, first_col};
}

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
