// A tile of the side that streams past a block, in shared memory, in
// the copies that its products need: rows for mma_ABt(), and columns for mma_AB() on machines whose
// instructions can't read a tile transposed.
#pragma once

#include "device/tile/shared_tile.h"

namespace tilewise::device {

/// How products read a tile; bits.
enum TileUse : int { kByRows = 1, kByColumns = 2, kBothWays = 3 };

/// A member that takes no room where it is not wanted.
template <bool kWanted, class Tile>
struct RowsPart {};
template <class Tile>
struct RowsPart<true, Tile> {
  Tile rows;
};
template <bool kWanted, class Tile>
struct ColumnsPart {};
template <class Tile>
struct ColumnsPart<true, Tile> {
  Tile columns;
};

/// What a stream tile of a machine consists of. kTransposedCopies: the machine's trait of that name.
constexpr bool has_rows(int use, bool transposed_copies) { return !transposed_copies || (use & kByRows) != 0; }
constexpr bool has_columns(int use, bool transposed_copies) { return transposed_copies && (use & kByColumns) != 0; }

/// Rows x Depth elements.
template <int Element, int Rows, int Depth, int kUse, bool kTransposedCopies>
struct StreamTile
    : RowsPart<has_rows(kUse, kTransposedCopies), SharedTile<Element, Rows, Depth>>,
      ColumnsPart<has_columns(kUse, kTransposedCopies), SharedTile<Element, Depth, Rows, kSwizzledSpread>> {
  static constexpr int kElement = Element, kRows = Rows, kDepth = Depth;
  static constexpr bool kHasRows = has_rows(kUse, kTransposedCopies);
  static constexpr bool kHasColumns = has_columns(kUse, kTransposedCopies);

  TILEWISE_INLINE const auto& by_rows() const { return this->rows; }
  TILEWISE_INLINE const auto& by_columns() const {
    if constexpr (kTransposedCopies) {
      return this->columns;
    } else {
      return this->rows;
    }
  }
};

/// A tile that products read by columns, in rows as they were loaded: on machines with transposing reads.
template <int Element, int Rows, int Depth>
struct ColumnsOfRows {
  static constexpr int kElement = Element, kRows = Rows, kDepth = Depth;
  static constexpr bool kHasRows = true, kHasColumns = false;
  SharedTile<Element, Rows, Depth, kSwizzledByFours> rows;
};

}  // namespace tilewise::device
