// A tile of the streamed side (keys and values, or queries and their gradients) in shared memory, in
// the copies that its products need: rows for multiply(), and columns for accumulate() on machines
// whose instructions can't read a tile transposed.
#pragma once

#include "device/portable/shared_tile.h"

namespace tilewise::device {

/// What a tile is used for; bits.
enum TileUse : int { kForMultiply = 1, kForAccumulate = 2, kForBoth = 3 };

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
constexpr bool has_rows(int use, bool transposed_copies) { return !transposed_copies || (use & kForMultiply) != 0; }
constexpr bool has_columns(int use, bool transposed_copies) { return transposed_copies && (use & kForAccumulate) != 0; }

/// Cols x Depth elements.
template <int Cols, int Depth, int kUse, bool kTransposedCopies>
struct StreamTile : RowsPart<has_rows(kUse, kTransposedCopies), SharedTile<Cols, Depth>>,
                    ColumnsPart<has_columns(kUse, kTransposedCopies), SharedTile<Depth, Cols, true>> {
  static constexpr int kCols = Cols, kDepth = Depth;
  static constexpr bool kHasRows = has_rows(kUse, kTransposedCopies);
  static constexpr bool kHasColumns = has_columns(kUse, kTransposedCopies);

  TILEWISE_INLINE const auto& for_multiply() const { return this->rows; }
  TILEWISE_INLINE const auto& for_accumulate() const {
    if constexpr (kTransposedCopies) {
      return this->columns;
    } else {
      return this->rows;
    }
  }
};

}  // namespace tilewise::device
