// From accumulators to rows in global memory, by way of shared memory: a wave writes its rows as
// elements into a tile, then each lane stores 16 bytes of a row.
#pragma once

#include "device/common/kernel_config.h"
#include "device/portable/shared_tile.h"

namespace tilewise::device {

/// Rounds the wave's accumulators into rows [wave_row, ...) of a tile. Adjacent columns of a lane
/// leave together.
template <class Ops, KernelConfig C, class Tile, class Out>
TILEWISE_INLINE void store_rows(Tile& tile, const Out& out, int wave_row) {
  using Machine = typename Ops::Machine;
  using Layout = typename Out::Layout;
  constexpr bool kPairs = Layout::place(0, 1).col == Layout::place(0, 0).col + 1;
  constexpr int kRun = kPairs ? 2 : 1;
  const int lane = Machine::lane();
  TILEWISE_UNROLL
  for (int r = 0; r < Out::kRowTiles; ++r) {
    TILEWISE_UNROLL
    for (int c = 0; c < Out::kColTiles; ++c) {
      TILEWISE_UNROLL
      for (int i = 0; i < Layout::kRegisters; i += kRun) {
        const Place place = Layout::place(lane, i);
        const int row = wave_row + r * Layout::kRows + place.row, col = c * Layout::kCols + place.col;
        uint16_t* to = tile.chunk(row, col / kChunk) + col % kChunk;
        const uint32_t packed = Machine::template pack<C.element>(out.tile[r][c][i], out.tile[r][c][i + kRun - 1]);
        if constexpr (kPairs) {
          Machine::store_shared(to, packed);
        } else {
          Machine::store_shared(to, static_cast<uint16_t>(packed));
        }
      }
    }
  }
}

/// Stores rows [wave_row, wave_row + count) of a tile where address(row) says, or nowhere where that
/// is null. The wave has written them itself.
template <class Ops, KernelConfig C, class Tile, class Address>
TILEWISE_INLINE void copy_rows_out(const Tile& tile, int wave_row, int count, int64_t cols, const Address& address) {
  using Machine = typename Ops::Machine;
  constexpr int kRowChunks = Tile::kCols / kChunk;
  for (int unit = Machine::lane(); unit < count * kRowChunks; unit += Machine::kLanes) {
    const int row = wave_row + unit / kRowChunks, chunk = unit % kRowChunks, col = chunk * kChunk;
    uint16_t* to = address(row);
    if (!to || col >= cols) continue;
    const Chunk elements = Machine::template load_shared<Chunk>(tile.chunk(row, chunk));
    if constexpr (C.vector_rows) {
      Machine::store_global(reinterpret_cast<Chunk*>(to + col), elements);
    } else {
      TILEWISE_UNROLL
      for (int i = 0; i < kChunk; ++i) {
        if (col + i < cols) {
          Machine::store_global(to + col + i, static_cast<uint16_t>(elements.word[i / 2] >> (16 * (i % 2))));
        }
      }
    }
  }
}

}  // namespace tilewise::device
