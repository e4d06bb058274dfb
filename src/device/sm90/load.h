// Loads of tiles from global to shared memory by TMA: whole tiles, shares of what all blocks of a cluster get, and
// gathered rows.
#pragma once

#include "device/sm90/mbarrier.h"
#include "device/sm90/swizzled_tile.h"
#include "device/sm90/tensor_map.h"

namespace tilewise::device {

/// Loads a box to its place in this block, or in all kBlocks of a cluster, whose barriers expect it alike.
template <int kBlocks, class Machine, class... X>
TILEWISE_INLINE void load_box(uint8_t* to, const TensorMap& map, Barrier<Machine>& full, X... x) {
  if constexpr (kBlocks == 1) {
    Machine::copy_box(to, map, full.state(), x...);
  } else {
    constexpr uint32_t kAll = (1u << kBlocks) - 1;
    Machine::copy_box_to_blocks(kAll, to, map, full.state(), x...);
  }
}

/// Loads a tile. One thread calls it. The map's box is a chunk of the tile, which begins at x0, x..., the innermost
/// dimension first.
template <class Machine, class Tile, class... X>
TILEWISE_INLINE void load_tile(Tile& tile, const TensorMap& map, Barrier<Machine>& full, int32_t x0, X... x) {
  TILEWISE_UNROLL
  for (int c = 0; c < Tile::kChunks; ++c) {
    Machine::copy_box(tile.chunk(c), map, full.state(), x0 + c * Tile::kChunkColumns, x...);
  }
}

/// Loads this block's share of the rows of a tile that all kBlocks of its cluster get. The map's box has that many
/// rows. Each block expects the bytes of the whole tile.
template <int kBlocks, class Machine, class Tile, class... X>
TILEWISE_INLINE void load_share(Tile& tile, const TensorMap& map, Barrier<Machine>& full, int32_t x0, int32_t row,
                                X... x) {
  if constexpr (kBlocks == 1) {
    load_tile(tile, map, full, x0, row, x...);
  } else {
    constexpr int32_t kShare = Tile::kRows / kBlocks;
    static_assert(kShare * kBlocks == Tile::kRows && kShare % 8 == 0, "shares are whole patterns of the swizzle");
    const int32_t first = Machine::rank_in_cluster() * kShare;
    TILEWISE_UNROLL
    for (int c = 0; c < Tile::kChunks; ++c) {
      load_box<kBlocks>(tile.chunk(c) + first * Tile::kRowBytes, map, full, x0 + c * Tile::kChunkColumns, row + first,
                        x...);
    }
  }
}

/// Gathers rows from anywhere. All lanes of a warp call it once the bytes are expected. The map's box is one row of a
/// chunk. row_of(i) is the place in the tensor of the tile's row i; where it is negative or past the end, zeros come.
template <class Machine, class Tile, class RowOf>
TILEWISE_INLINE void load_gathered(Tile& tile, const TensorMap& map, Barrier<Machine>& full, int32_t x0,
                                   const RowOf& row_of) {
  TILEWISE_NO_UNROLL
  for (int32_t i = Machine::lane(); i < Tile::kRows; i += 32) {
    const int32_t row = row_of(i);
    TILEWISE_UNROLL
    for (int c = 0; c < Tile::kChunks; ++c) {
      Machine::copy_box(tile.chunk(c) + i * Tile::kRowBytes, map, full.state(), x0 + c * Tile::kChunkColumns, row);
    }
  }
}

}  // namespace tilewise::device
