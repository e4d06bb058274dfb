// The rows a block owns as a product's operand: kept in shared memory, or moved to registers once.
#pragma once

#include "device/portable/loader.h"

namespace tilewise::device {

template <class Ops, KernelConfig C, int Depth>
class OwnRows {
  using Machine = typename Ops::Machine;
  static constexpr int kBlockRows = C.waves * C.rows_per_wave;

 public:
  using Tile = SharedTile<kBlockRows, Depth>;

  /// fill(tile) starts copying the block's rows. Rows that move to registers need two barriers; rows
  /// that stay are ready after the first barrier of the caller.
  template <class Fill>
  TILEWISE_INLINE void load(Tile& tile, int wave_row, const Fill& fill) {
    fill(tile);
    if constexpr (C.rows_in_registers) {
      Ops::finish_copies();
      Machine::barrier();
      Ops::load_rows(held_, tile, wave_row);
      Machine::barrier();
    }
  }

  /// scores += rows * other^T.
  template <class Scores, class Other>
  TILEWISE_INLINE void multiply(Scores& scores, const Tile& tile, int wave_row, const Other& other) const {
    if constexpr (C.rows_in_registers) {
      Ops::template multiply<C.element>(scores, held_, other);
    } else {
      Ops::template multiply<C.element>(scores, tile, wave_row, other);
    }
  }

 private:
  struct Nothing {};
  template <bool kHeld, class Operand>
  struct Choose {
    using Type = Nothing;
  };
  template <class Operand>
  struct Choose<true, Operand> {
    using Type = Operand;
  };
  using Operand = typename Ops::template RowOperand<C.rows_per_wave, Depth>;
  typename Choose<C.rows_in_registers, Operand>::Type held_;
};

}  // namespace tilewise::device
