// The rows a block owns as a product's operand: kept in shared memory, or moved to registers once.
#pragma once

#include "device/portable/loader.h"

namespace tilewise::device {

template <class Ops, KernelConfig C, int Depth>
class OwnRows {
  using Machine = typename Ops::Machine;
  static constexpr int kBlockRows = C.waves * C.rows_per_wave;
  static constexpr bool kDirect = C.rows_in_registers && Ops::kDirectRows;

  template <bool kFirst, class First, class Second>
  struct Choose {
    using Type = First;
  };
  template <class First, class Second>
  struct Choose<false, First, Second> {
    using Type = Second;
  };
  struct Nothing {};

 public:
  /// What the rows need of shared memory; empty where they come straight to registers.
  using Tile = typename Choose<kDirect, Nothing, SharedTile<kBlockRows, Depth>>::Type;

  /// Starts bringing the block's rows, which lie at address(row). Rows that move to registers through
  /// shared memory need two barriers; rows that stay are ready after the first barrier of the caller.
  template <class Address>
  TILEWISE_INLINE void load(Tile& tile, int wave_row, int64_t cols, const Address& address) {
    if constexpr (kDirect) {
      Ops::gather_rows(held_, [&](int row, int chunk) {
        return load_chunk<Machine, C>(address(wave_row + row), chunk * kChunk, static_cast<int>(cols));
      });
    } else {
      copy_rows<Ops, C>(tile, cols, address);
      if constexpr (C.rows_in_registers) {
        Ops::finish_copies();
        Machine::barrier();
        Ops::load_rows(held_, tile, wave_row);
        Machine::barrier();
      }
    }
  }

  /// scores += rows * other^T.
  template <class Scores, class Other>
  TILEWISE_INLINE void multiply(Scores& scores, const Tile& tile, int wave_row, const Other& other) const {
    if constexpr (C.rows_in_registers) {
      Ops::template multiply<C.element>(scores, held_, other);
    } else {
      Ops::template multiply<C.element, is_crowded(C)>(scores, tile, wave_row, other);
    }
  }

 private:
  using Operand = typename Ops::template RowOperand<C.rows_per_wave, Depth>;
  typename Choose<C.rows_in_registers, Operand, Nothing>::Type held_;
};

}  // namespace tilewise::device
