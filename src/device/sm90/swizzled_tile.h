// Tiles in shared memory as TMA leaves them and the matrix unit reads them.
#pragma once

#include "device/tile/platform.h"

namespace tilewise::device {

inline constexpr int kChunkRowBytes = 128;

/// Rows x Cols elements as TMA leaves them and the matrix unit reads them: chunks of 64 columns, or of 128
/// where elements are bytes, each row of a chunk 128 bytes, whose 16-byte pieces are permuted by the row. What no
/// product reads may have shorter rows: the pieces of 64 and 32 bytes are permuted by the 128 bytes that they are in,
/// those of others, such as 80, lie in different banks as they are.
template <int Rows, int Cols, int ElementBytes = 2, int RowBytes = kChunkRowBytes>
struct alignas(1024) SwizzledTile {
  static constexpr int kRows = Rows, kCols = Cols, kElementBytes = ElementBytes, kRowBytes = RowBytes;
  static constexpr int kChunkColumns = RowBytes / ElementBytes, kRowPieces = RowBytes / 16;
  static constexpr int kChunks = (Cols + kChunkColumns - 1) / kChunkColumns;
  static constexpr int kChunkBytes = Rows * RowBytes, kBytes = kChunks * kChunkBytes;
  static_assert(kChunkBytes % 1024 == 0, "a swizzled pattern is 1024 bytes");
  static constexpr bool kPermutes = (RowBytes & (RowBytes - 1)) == 0;
  uint8_t bytes[kBytes];

  TILEWISE_INLINE uint8_t* chunk(int index) { return bytes + index * kChunkBytes; }
  /// Returns 16 bytes of a row; `piece` counts over all chunks.
  TILEWISE_INLINE uint8_t* piece(int row, int piece) {
    return chunk(piece / kRowPieces) + place_of(row, piece % kRowPieces);
  }
  /// Returns where a piece lies in its chunk.
  TILEWISE_INLINE static constexpr int place_of(int row, int piece) {
    const int moved = kPermutes ? piece ^ row * RowBytes / kChunkRowBytes % kRowPieces : piece;
    return row * RowBytes + (moved << 4);
  }
  /// Returns piece `first` + 2k of a row. `first` is 0 or 1 and lies at `place`: one register serves all k.
  TILEWISE_INLINE uint8_t* pair_piece(int place, int k) { return chunk(k / 4) + (place ^ k % 4 * 32); }
};

}  // namespace tilewise::device
