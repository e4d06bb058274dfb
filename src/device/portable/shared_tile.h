// A tile of 16-bit elements in shared memory, its 16-byte chunks swizzled so that the accesses of
// matrix instructions meet no bank twice: 8 rows of one chunk column lie in 8 different 16-byte banks.
#pragma once

#include "device/portable/platform.h"

namespace tilewise::device {

inline constexpr int kChunk = 8;  // elements of 16 bytes

/// Rows x Cols elements, row after row. Cols is a multiple of 32. Writers that walk down columns 8
/// rows apart (transposing copies) set kSpread, which also turns the swizzle every 8 rows.
template <int Rows, int Cols, bool kSpread = false>
struct SharedTile {
  static_assert(Cols % 32 == 0, "a row is whole half lines of 64 bytes");
  static constexpr int kRows = Rows, kCols = Cols;
  alignas(128) uint16_t data[Rows * Cols];

  /// Element offset of a chunk.
  TILEWISE_INLINE static constexpr int offset(int row, int chunk) {
    const int turn = kSpread ? row ^ (row >> 3) : row;
    const int place = Cols % 64 == 0 ? chunk ^ (turn & 7) : chunk ^ ((turn >> 1) & 3);
    return row * Cols + place * kChunk;
  }
  TILEWISE_INLINE const uint16_t* chunk(int row, int index) const { return data + offset(row, index); }
  TILEWISE_INLINE uint16_t* chunk(int row, int index) { return data + offset(row, index); }
};

}  // namespace tilewise::device
