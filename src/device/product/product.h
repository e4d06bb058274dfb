// Products of a block's tiles: sums over the depth of a[row, depth] b[column, depth], each operand's elements of
// whatever type and wherever they lie. While a tile is multiplied the next ones are on their way.
#pragma once

#include "device/product/lane_scales.h"
#include "device/product/sums.h"
#include "device/tile/contract.h"

namespace tilewise::device {

template <TileOps Ops, ProductConfig C>
class Product {
  using Machine = typename Ops::Machine;
  using TileA = OperandTile<Ops, C, C.a, C.block_m>;
  using TileB = OperandTile<Ops, C, C.b, C.block_n>;
  using LoaderA = OperandLoader<Ops, C, C.a, C.block_m>;
  using LoaderB = OperandLoader<Ops, C, C.b, C.block_n>;
  static constexpr int kScaledDepth = C.scaled_depth();
  static constexpr bool kCopies = kCopiesRows<Ops, C, C.a> || kCopiesRows<Ops, C, C.b>;
  /// Whether b's rows of a block share their scale at each depth.
  static constexpr bool kOneFactor = C.b.scale_use == kScaleSums && C.b.halves == 0 && C.b.scale_rows >= C.block_n;
  static_assert(kScaledDepth % C.block_k == 0, "a tile has one scale");
  /// What a product of the operands' elements counts.
  static constexpr float kUnit = C.in_bytes() && !C.scales_products() ? kUnitOfByteProducts<Machine> : 1.0f;
  static constexpr bool kScales = C.scales_products();
  using Scales = Choose<kScales, PairScales<Ops, C>, NoScales>;
  static_assert(!kScales || (C.in_bytes() && C.block_k % 64 == 0), "the matrix unit scales bytes");
  static_assert(C.stages >= 2, "a tile is multiplied while the next one lands");

  struct Stage {
    TileA a;
    TileB b;
  };

 public:
  using Sums = ProductSums<Ops, C>;
  struct Shared {
    Stage stage[C.stages];
  };

  /// Adds the products of depth [begin, end) to `sums`. `begin` is a multiple of block_k, and of the scales' depth
  /// where sums are scaled (`end` of 64 where products are); an empty range adds nothing. Sums of bytes begin as zeros.
  /// All lanes of the block call it; shared memory is free for other uses after a barrier.
  TILEWISE_INLINE static void run(Shared& shared, const OperandRows& a, const OperandRows& b, int64_t begin,
                                  int64_t end, Sums& sums) {
    if (begin >= end) return;
    const auto steps = static_cast<int32_t>(ceil_div(end - begin, int64_t{C.block_k}));
    LoaderA load_a(a);
    LoaderB load_b(b);
    const auto start = [&](int32_t step) {
      if (step >= steps) return;
      Stage& stage = shared.stage[step % C.stages];
      const int64_t depth = begin + int64_t{step} * C.block_k;
      const bool whole = depth + C.block_k <= end;
      load_a.start(stage.a, depth, end, whole);
      load_b.start(stage.b, depth, end, whole);
    };
    const auto finish = [&](int32_t step) {
      if (step >= steps) return;
      Stage& stage = shared.stage[step % C.stages];
      load_a.finish(stage.a);
      load_b.finish(stage.b);
    };
    TILEWISE_UNROLL
    for (int32_t step = 0; step < C.stages - 1; ++step) {
      start(step);
      commit();
      finish(step);
    }
    const Scales scales(a, b, sums);
    typename Scales::Held next_scales = scales.load(begin, end);
    Sums part(Machine::wave());
    if constexpr (kScaledDepth != 0) part.clear();
    TILEWISE_NO_UNROLL
    for (int32_t step = 0; step < steps; ++step) {
      wait();
      Machine::barrier();  // this step's tiles are there, and nobody reads the last step's any more
      start(step + C.stages - 1);
      commit();
      const Stage& stage = shared.stage[step % C.stages];
      const typename Scales::Held held_scales = next_scales;
      next_scales = scales.load(begin + int64_t{step + 1} * C.block_k, end);
      Sums& here = kScaledDepth == 0 ? sums : part;
      if constexpr (kScales) {
        here.multiply_scaled(stage.a, stage.b, held_scales);
      } else {
        here.multiply(stage.a, stage.b);
      }
      if constexpr (kScaledDepth != 0) {
        const int64_t next = begin + int64_t{step + 1} * C.block_k;
        if (next % kScaledDepth == 0 || next >= end) add_scaled(a, b, next - C.block_k, part, sums);
      }
      finish(step + C.stages - 1);
    }
    if constexpr (C.in_bytes() && !kScales) {
      if constexpr (kScaledDepth == 0) sums.multiply_by(kUnit);
      if constexpr (kKnowsFnuz<Machine>) {
        Machine::barrier();
        load_a.leave_nans(shared.stage[0].a);
        load_b.leave_nans(shared.stage[0].b);
        Machine::barrier();
        sums.poison([&](int row) { return nans_of_row<Machine>(shared.stage[0].a, row); },
                    [&](int c) {
                      const int row = sums.first_col() + 32 * c + Machine::lane() % 32;
                      return nans_of_row<Machine>(shared.stage[0].b, row);
                    });
      }
    }
  }

 private:
  TILEWISE_INLINE static void commit() {
    if constexpr (kCopies) Machine::commit_copies();
  }
  TILEWISE_INLINE static void wait() {
    if constexpr (kCopies) Machine::template wait_copies<C.stages - 2>();
  }

  /// The sums of the block of scales at `depth`, times its scales.
  TILEWISE_INLINE static void add_scaled(const OperandRows& a, const OperandRows& b, int64_t depth, Sums& part,
                                         Sums& sums) {
    RowValues<Sums::kSlots> row_factor;
    row_factor.fill(kUnit);
    if constexpr (C.a.scale_use == kScaleSums) {
      TILEWISE_UNROLL
      for (int slot = 0; slot < Sums::kSlots; ++slot)
        row_factor[slot] *= operand_scale<Machine, C.a>(a, sums.row_of_slot(slot), depth);
    }
    if constexpr (kOneFactor) {
      const float factor = operand_scale<Machine, C.b>(b, 0, depth);
      TILEWISE_UNROLL
      for (int slot = 0; slot < Sums::kSlots; ++slot) row_factor[slot] *= factor;
    }
    if constexpr (C.b.scale_use == kScaleSums && !kOneFactor) {
      sums.add_scaled(part, row_factor, [&](int col) { return operand_scale<Machine, C.b>(b, col, depth); });
    } else {
      sums.add_scaled(part, row_factor, [](int) { return 1.0f; });
    }
    part.clear();
  }
};

}  // namespace tilewise::device
