// A tile of 16-bit elements in shared memory, its 16-byte chunks swizzled so that the accesses of
// matrix instructions meet no bank twice: 8 rows of one chunk column lie in 8 different 16-byte banks.
#pragma once

#include "device/tile/element.h"

namespace tilewise::device {

inline constexpr int kChunk = 8;  // elements of 16 bytes

/// How the chunks of a row are swizzled: by the number of the row; spread, for writers that walk down columns 8 rows
/// apart (transposing copies), which also turns every 8 rows; by fours, for readers of 4 chunks in each of 4 rows
/// (transposing reads).
enum Swizzle : int { kSwizzledByRow, kSwizzledSpread, kSwizzledByFours };

/// Rows x Cols elements of ElementType `Element`, row after row. Cols is 16 or a multiple of 32.
template <int Element, int Rows, int Cols, int kSwizzle = kSwizzledByRow>
struct SharedTile {
  static_assert(Cols == 16 || Cols % 32 == 0, "a row is whole half lines of 64 bytes, or half of one");
  static constexpr int kElement = Element, kRows = Rows, kCols = Cols;
  using Bits = ElementBits<Element>;
  static_assert(sizeof(Bits) == 2, "matrix instructions read 16-bit elements");
  alignas(128) Bits data[Rows * Cols];

  /// Element offset of a chunk.
  TILEWISE_INLINE static constexpr int offset(int row, int chunk) {
    return row * Cols + ((chunk & ~kTurns) + ((chunk & kTurns) ^ turn(row))) * kChunk;
  }
  /// The same of chunk base_chunk + chunk in row base_row + row, where neither sum carries and the bases
  /// are known to the compiler: the lanes' part takes few different values, the rest is immediate.
  TILEWISE_INLINE static constexpr int offset(int base_row, int row, int base_chunk, int chunk) {
    const int fixed = base_row * Cols + (base_chunk & ~kTurns) * kChunk;
    const int lanes = row * Cols + (chunk ^ turn(row)) * kChunk;
    return fixed + (lanes ^ (((base_chunk & kTurns) ^ turn(base_row)) * kChunk));
  }
  /// The chunk of a row that stands at a place of it.
  TILEWISE_INLINE static constexpr int chunk_at(int row, int place) { return place ^ turn(row); }
  TILEWISE_INLINE const Bits* chunk(int row, int index) const { return data + offset(row, index); }
  TILEWISE_INLINE Bits* chunk(int row, int index) { return data + offset(row, index); }
  TILEWISE_INLINE Bits* chunk(int base_row, int row, int base_chunk, int index) {
    return data + offset(base_row, row, base_chunk, index);
  }
  TILEWISE_INLINE const Bits* chunk(int base_row, int row, int base_chunk, int index) const {
    return data + offset(base_row, row, base_chunk, index);
  }

 private:
  static_assert(kSwizzle != kSwizzledByFours || Cols % 64 == 0);
  static constexpr int kTurns = kSwizzle == kSwizzledByFours && Cols % 128 == 0 ? 15
                                : Cols % 64 == 0                                ? 7
                                : Cols % 32 == 0                                ? 3
                                                                                : 1;
  /// What the chunks of a row are turned by. Linear over exclusive or.
  TILEWISE_INLINE static constexpr int turn(int row) {
    if constexpr (kSwizzle == kSwizzledByFours) return 4 * (Cols % 128 == 0 ? row & 3 : (row >> 1) & 1);
    const int spread = kSwizzle == kSwizzledSpread ? row ^ (row >> 3) : row;
    return Cols % 64 == 0 ? spread & 7 : Cols % 32 == 0 ? (spread >> 1) & 3 : (spread >> 2) & 1;
  }
};

/// A tile from a row and a column on, as an operand of products. kTight: registers are scarce around them.
template <class Tile_, bool kTight_ = false>
struct TilePart {
  using Tile = Tile_;
  static constexpr int kElement = Tile::kElement;
  static constexpr bool kTight = kTight_;
  const Tile& tile;
  int first_row = 0, first_col = 0;
};

/// Rows of an operand that are a tile's columns, from first_col on; the tile's rows are the depth.
template <class Tile_>
struct TransposedPart {
  using Tile = Tile_;
  static constexpr int kElement = Tile::kElement;
  const Tile& tile;
  int first_col = 0;
};

/// Parts as they are, and tiles as parts that begin at their first row and column.
template <class Tile, bool kTight>
TILEWISE_INLINE TilePart<Tile, kTight> part_of(const TilePart<Tile, kTight>& part) {
  return part;
}
template <int kElement, int Rows, int Cols, int kSwizzle>
TILEWISE_INLINE TilePart<SharedTile<kElement, Rows, Cols, kSwizzle>> part_of(
    const SharedTile<kElement, Rows, Cols, kSwizzle>& tile, int first_row = 0, int first_col = 0) {
  return {tile, first_row, first_col};
}

}  // namespace tilewise::device
