// Tiles from global to shared memory by TMA: whole ones, shares of what all blocks of a cluster get, gathered rows.
#pragma once

#include "device/sm90/mbarrier.h"
#include "device/sm90/swizzled_tile.h"
#include "device/sm90/tensor_map.h"

namespace tilewise::device {

/// By one thread. The map's box is a chunk of the tile; x0, x...: where the tile begins, the innermost dimension first.
template <class Machine, class Tile, class... X>
TILEWISE_INLINE void load_tile(Tile& tile, const TensorMap& map, Barrier<Machine>& full, int32_t x0, X... x) {
  TILEWISE_UNROLL
  for (int c = 0; c < Tile::kChunks; ++c) {
    Machine::copy_box(tile.chunk(c), map, full.state(), x0 + c * Tile::kChunkColumns, x...);
  }
}

/// This block's share of a tile that all kBlocks of its cluster get: so many of its rows, which the map's box is of.
/// Each block expects the bytes of the whole tile.
template <int kBlocks, class Machine, class Tile, class... X>
TILEWISE_INLINE void load_share(Tile& tile, const TensorMap& map, Barrier<Machine>& full, int32_t x0, int32_t row,
                                X... x) {
  if constexpr (kBlocks == 1) {
    load_tile(tile, map, full, x0, row, x...);
  } else {
    constexpr int32_t kShare = Tile::kRows / kBlocks;
    static_assert(kShare * kBlocks == Tile::kRows && kShare % 8 == 0, "shares are whole patterns of the swizzle");
    constexpr uint32_t kAll = (1u << kBlocks) - 1;
    const int32_t first = Machine::rank_in_cluster() * kShare;
    TILEWISE_UNROLL
    for (int c = 0; c < Tile::kChunks; ++c) {
      Machine::copy_box_to_blocks(kAll, tile.chunk(c) + first * Tile::kRowBytes, map, full.state(),
                                  x0 + c * Tile::kChunkColumns, row + first, x...);
    }
  }
}

/// Rows from anywhere, by all lanes of a warp once the bytes are expected; the map's box is one row of a chunk.
/// row_of(i): of the tile's row i, in the tensor; negative or past its end: zeros.
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
