// The rows a block owns as a product's operand: kept in shared memory, or moved to registers once.
#pragma once

#include "device/tile/loader.h"

namespace tilewise::device {

struct NoTile {};

template <bool kByFours, class Ops, int kElement, int Rows, int Depth>
struct ChooseOperand {
  using Type = typename Ops::template Operand<kElement, Rows, Depth>;
};
template <class Ops, int kElement, int Rows, int Depth>
struct ChooseOperand<true, Ops, kElement, Rows, Depth> {
  using Type = typename Ops::template OperandByFours<kElement, Rows, Depth>;
};

/// C.waves waves own C.rows_per_wave rows each, of Depth elements. kTight: registers are scarce around the products.
/// kChanged: rows come by load_changed(). kByFours: they are multiplied with ByteTiles.
template <class Ops, auto C, int kElement, int Depth, bool kTight = false, bool kChanged = false, bool kByFours = false>
class OwnRows {
  using Machine = typename Ops::Machine;
  using RowTile = SharedTile<kElement, C.waves * C.rows_per_wave, Depth>;
  static constexpr bool kDirect = C.rows_in_registers && Ops::kDirectRows && !kChanged;

 public:
  /// What the rows need of shared memory; empty where they come straight to registers.
  using Tile = Choose<kDirect, NoTile, RowTile>;

  /// Starts loading the block's first `rows` rows, which lie at address(row); the others are zeros. Rows
  /// that move to registers through shared memory need two barriers; rows that stay are ready after the first barrier
  /// of the caller.
  template <class Address>
  TILEWISE_INLINE void load(Tile& tile, int wave_row, int64_t cols, const Address& address, int rows = RowTile::kRows) {
    if constexpr (kDirect) {
      Ops::gather_rows(held_, [&](int row, int chunk) {
        // Elements that come one by one are each compared with `cols`: kept for all of a lane's rows, these are 96
        // scalar registers where rows have 192 elements.
        auto used = static_cast<int>(cols);
        if constexpr (!C.vector_rows && kSparesScalars<Machine>) used = Machine::not_hoisted(used);
        return load_chunk<Machine, C>(address(wave_row + row), chunk * kChunk, used);
      });
    } else {
      copy_rows<Ops, C>(tile, cols, address, rows);
      if constexpr (C.rows_in_registers) {
        Ops::finish_copies();
        Machine::barrier();
        Ops::load_operand(held_, part_of(tile, wave_row));
        Machine::barrier();
      }
    }
  }

  /// The same of rows that change while they lie in the tile: change() does that, once all have been copied (it calls
  /// Ops::finish_copies() and a barrier itself, so as to ask for what it needs before).
  template <class Address, class Change>
  TILEWISE_INLINE void load_changed(Tile& tile, int wave_row, int64_t cols, const Address& address, int rows,
                                    const Change& change) {
    copy_rows<Ops, C>(tile, cols, address, rows);
    change();
    if constexpr (C.rows_in_registers) {
      Machine::barrier();
      if constexpr (Ops::kDirectRows) {
        Ops::gather_rows(held_, [&](int row, int chunk) {
          return Machine::template load_shared<Chunk>(tile.chunk(wave_row + row, chunk));
        });
      } else {
        Ops::load_operand(held_, part_of(tile, wave_row));
      }
      Machine::barrier();
    }
  }

  /// The wave's rows as the left operand of mma_ABt().
  TILEWISE_INLINE decltype(auto) operand(const Tile& tile, int wave_row) const {
    if constexpr (C.rows_in_registers) {
      return (held_);
    } else {
      return TilePart<RowTile, kTight>{tile, wave_row};
    }
  }

 private:
  using Operand = typename ChooseOperand<kByFours, Ops, kElement, C.rows_per_wave, Depth>::Type;
  Choose<C.rows_in_registers, Operand, NoTile> held_;
};

}  // namespace tilewise::device
