// A tile of the streamed side (keys and values, or queries and their gradients) in shared memory, in
// the copies that its products need: rows for multiply(), and columns for accumulate() on machines
// whose instructions can't read a tile transposed.
#pragma once

#include "device/portable/shared_tile.h"

namespace tilewise::device {

/// What a tile is used for; bits.
enum TileUse : int { kForMultiply = 1, kForAccumulate = 2, kForBoth = 3 };

struct NoTile {};

template <bool kWanted, class Tile>
struct OptionalTile {
  using Type = NoTile;
};
template <class Tile>
struct OptionalTile<true, Tile> {
  using Type = Tile;
};

/// Cols x Depth elements. kTransposedCopies: the machine's trait of that name.
template <int Cols, int Depth, int kUse, bool kTransposedCopies>
struct StreamTile {
  static constexpr int kCols = Cols, kDepth = Depth;
  static constexpr bool kHasRows = !kTransposedCopies || (kUse & kForMultiply) != 0;
  static constexpr bool kHasColumns = kTransposedCopies && (kUse & kForAccumulate) != 0;
  typename OptionalTile<kHasRows, SharedTile<Cols, Depth>>::Type rows;
  typename OptionalTile<kHasColumns, SharedTile<Depth, Cols, true>>::Type columns;

  TILEWISE_INLINE const auto& for_multiply() const { return rows; }
  TILEWISE_INLINE const auto& for_accumulate() const {
    if constexpr (kTransposedCopies) {
      return columns;
    } else {
      return rows;
    }
  }
};

}  // namespace tilewise::device
