// From accumulators to rows in global memory. Where a lane holds 4 adjacent columns it stores them
// itself; else a wave writes its rows into a shared tile, from which each lane stores 16 bytes of a row.
#pragma once

#include "device/tile/fragment.h"
#include "device/tile/shared_tile.h"

namespace tilewise::device {

/// Rounds the wave's accumulators into rows [wave_row, ...) of a tile, from first_col on or into the wave's part
/// of its columns. Adjacent columns of a lane leave together.
template <class Tile, class Out, int kParts = 1>
TILEWISE_INLINE void store_rows(Tile& tile, const Out& out, int wave_row, int first_col = 0,
                                ColumnPart<kParts> part = {0}) {
  using Machine = typename Out::Ops::Machine;
  using FragmentLayout = typename Out::FragmentLayout;
  constexpr bool kPairs = kAdjacentColumns<FragmentLayout> > 1;
  constexpr int kRun = kPairs ? 2 : 1;
  const int lane = Machine::lane();
  TILEWISE_UNROLL
  for (int r = 0; r < Out::kRowTiles; ++r) {
    TILEWISE_UNROLL
    for (int c = 0; c < Out::kColTiles; ++c) {
      TILEWISE_UNROLL
      for (int i = 0; i < FragmentLayout::kRegisters; i += kRun) {
        const int row = wave_row + r * FragmentLayout::kRows + FragmentLayout::place(lane, i).row;
        const int col = first_col + part.whole(Out::column(lane, c, i));
        auto* to = tile.chunk(row, col / kChunk) + col % kChunk;
        const uint32_t packed = Machine::template pack<Tile::kElement>(out.tile[r][c][i], out.tile[r][c][i + kRun - 1]);
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
template <class Machine, auto C, class Tile, class Address>
TILEWISE_INLINE void copy_rows_out(const Tile& tile, int wave_row, int count, int64_t cols, const Address& address) {
  constexpr int kRowChunks = Tile::kCols / kChunk;
  for (int unit = Machine::lane(); unit < count * kRowChunks; unit += Machine::kLanes) {
    const int row = wave_row + unit / kRowChunks, chunk = unit % kRowChunks, col = chunk * kChunk;
    auto* to = address(row);
    if (!to || col >= cols) continue;
    const Chunk elements = Machine::template load_shared<Chunk>(tile.chunk(row, chunk));
    if constexpr (C.vector_rows) {
      Machine::store_global(reinterpret_cast<Chunk*>(to + col), elements);
    } else {
      TILEWISE_UNROLL
      for (int i = 0; i < kChunk; ++i) {
        if (col + i < cols) {
          Machine::store_global(to + col + i, elements.element(i));
        }
      }
    }
  }
}

/// Whether a lane stores its part of a row itself.
template <class FragmentLayout>
inline constexpr bool kStoresDirectly = kAdjacentColumns<FragmentLayout> == 4;

/// The tile that write_rows() passes rows through; nothing but their element type where it needs none.
template <class Ops, int Element, int Rows, int Cols>
struct OutTile : SharedTile<Element, Rows, Cols> {};
template <class Ops, int Element, int Rows, int Cols>
  requires kStoresDirectly<typename Ops::FragmentLayout>
struct OutTile<Ops, Element, Rows, Cols> {
  static constexpr int kElement = Element;
};

template <auto C, int kElement, class Out, class Address>
TILEWISE_INLINE void store_runs(const Out& out, int wave_row, int64_t cols, const Address& address) {
  using Machine = typename Out::Ops::Machine;
  using FragmentLayout = typename Out::FragmentLayout;
  const int lane = Machine::lane();
  TILEWISE_UNROLL
  for (int r = 0; r < Out::kRowTiles; ++r) {
    auto* const row = address(wave_row + r * FragmentLayout::kRows + FragmentLayout::place(lane, 0).row);
    if (!row) continue;
    TILEWISE_UNROLL
    for (int c = 0; c < Out::kColTiles; ++c) {
      TILEWISE_UNROLL
      for (int i = 0; i < FragmentLayout::kRegisters; i += 4) {
        const int col = c * FragmentLayout::kCols + FragmentLayout::place(lane, i).col;
        const auto& tile = out.tile[r][c];
        const HalfChunk run{{Machine::template pack<kElement>(tile[i], tile[i + 1]),
                             Machine::template pack<kElement>(tile[i + 2], tile[i + 3])}};
        if constexpr (C.vector_rows) {
          if (C.exact_dims || col < cols) Machine::store_global(reinterpret_cast<HalfChunk*>(row + col), run);
        } else {
          TILEWISE_UNROLL
          for (int j = 0; j < 4; ++j) {
            if (col + j < cols) {
              Machine::store_global(row + col + j, run.element(j));
            }
          }
        }
      }
    }
  }
}

/// Rounds the wave's accumulators and stores them where address(row) says, or nowhere where that is
/// null. The tile may take the place of one that other waves still read.
template <auto C, class Tile, class Out, class Address>
TILEWISE_INLINE void write_rows(Tile& tile, const Out& out, int wave_row, int64_t cols, const Address& address) {
  using Machine = typename Out::Ops::Machine;
  if constexpr (kStoresDirectly<typename Out::FragmentLayout>) {
    store_runs<C, Tile::kElement>(out, wave_row, cols, address);
  } else {
    Machine::barrier();  // what stood here was read by all
    store_rows(tile, out, wave_row);
    Machine::wave_sync();
    copy_rows_out<Machine, C>(tile, wave_row, Out::kRows, cols, address);
  }
}

/// The same of a block whose waves share rows, each having a part of the columns: they store the
/// tile's rows in equal shares.
template <auto C, class Tile, class Out, int kParts, class Address>
TILEWISE_INLINE void write_part_rows(Tile& tile, const Out& out, int wave_row, ColumnPart<kParts> part, int64_t cols,
                                     const Address& address) {
  using Machine = typename Out::Ops::Machine;
  constexpr int kShare = Tile::kRows / C.waves;
  Machine::barrier();  // what stood here was read by all
  store_rows(tile, out, wave_row, 0, part);
  Machine::barrier();
  copy_rows_out<Machine, C>(tile, Machine::wave() * kShare, kShare, cols, address);
}

}  // namespace tilewise::device
