// Products whose second operand goes from memory straight to registers, since no two waves share its rows: shared
// memory is left to the first. For machines that load operands so (Ops::kDirectRows), rows of 16-bit elements that
// start on 16 bytes, and depths of whole tiles.
#pragma once

#include "device/product/product.h"

namespace tilewise::device {

/// turn(Index<parity>, step) of steps [0, last], for what two sets of registers hold by turns.
template <class Turn>
TILEWISE_INLINE void take_turns(int32_t last, const Turn& turn) {
  TILEWISE_NO_UNROLL
  for (int32_t step = 0; step < last; step += 2) {
    turn(Index<0>{}, step);
    turn(Index<1>{}, step + 1);
  }
  if (last % 2 == 0) turn(Index<0>{}, last);
}

template <TileOps Ops, ProductConfig C>
class DirectProduct {
  using Machine = typename Ops::Machine;
  using TileA = OperandTile<Ops, C, C.a, C.block_m>;
  using LoaderA = OperandLoader<Ops, C, C.a, C.block_m>;
  using Operand = typename Ops::template Operand<C.element, C.wave_columns(), C.block_k>;
  static_assert(C.b.type == C.element && !C.b.transposed && C.b.vectors != 0 && C.b.scale_use == kScaleNever);
  static_assert(C.waves == C.waves_n && C.stages == 2 && C.scaled_depth() == 0 && !C.in_f32());

 public:
  using Sums = MatrixSums<Ops, C>;
  struct Shared {
    TileA stage[2];
  };

  /// As Product::run(); begin and end are multiples of block_k.
  TILEWISE_INLINE static void run(Shared& shared, const OperandRows& a, const OperandRows& b, int64_t begin,
                                  int64_t end, Sums& sums) {
    if (begin >= end) return;
    const auto last = static_cast<int32_t>((end - begin) / C.block_k) - 1;
    LoaderA load_a(a);
    Operand held[2];
    // Behind the last step comes the last one again, which nobody multiplies: no branch holds loads back.
    const auto depth = [&](int32_t step) { return begin + int64_t{minimum(step, last)} * C.block_k; };
    const auto turn = [&](auto parity, int32_t step) {
      constexpr int kThis = decltype(parity)::value, kNext = 1 - kThis;
      Machine::barrier();  // this step's rows of a are there, and nobody reads the last step's any more
      load_a.start(shared.stage[kNext], depth(step + 1), end, true);
      load_b(held[kNext], b, depth(step + 1), sums.first_col());
      sums.multiply_held(shared.stage[kThis], held[kThis]);
      load_a.finish(shared.stage[kNext]);
    };
    load_a.start(shared.stage[0], begin, end, true);
    load_b(held[0], b, begin, sums.first_col());
    load_a.finish(shared.stage[0]);
    take_turns(last, turn);
  }

 private:
  TILEWISE_INLINE static void load_b(Operand& to, const OperandRows& b, int64_t depth, int first_row) {
    Ops::gather_rows(to, [&](int row, int chunk) {
      const uint8_t* const from = b.data + memory_row<Machine, C.b>(b, first_row + row) * b.line_stride + 2 * depth;
      return Machine::load_global(reinterpret_cast<const Chunk*>(from) + chunk);
    });
  }
};

}  // namespace tilewise::device
