// out = activation(x w^T + bias) of fp8 elements with scales of 1 x 128 of x and of 128 x 128 of w. Products of 128
// elements of K are summed by the matrix unit, and promoted: one part while the next one is multiplied, or while the
// other warpgroup multiplies.
#pragma once

#include "device/gemm/sm90/finish.h"
#include "device/sm90/contract.h"
#include "device/sm90/mma.h"
#include "device/sm90/promotion.h"
#include "device/sm90/roles.h"

namespace tilewise::device {

template <Sm90TileOps Ops, GemmConfig C>
class Sm90ScaledGemm {
  using Machine = typename Ops::Machine;
  using Stage = GemmStage<C>;
  using Pipe = Pipeline<Machine, C.stages, C.cluster>;
  using Sums = Fragment<Ops, 16, C.block_n>;
  using PerRow = typename Sums::PerRow;
  using Tiles = GemmTiles<Machine, C>;
  static constexpr int kRowBlocks = C.row_blocks(), kConsumerWarps = 4 * C.kConsumers;
  static constexpr int kBlock = 128, kRun = 4;  // elements of a scale along k; scales of one load
  static_assert(kBlock % C.block_n == 0 && C.block_k() == kBlock && !C.w_mn_major);
  static_assert(C.parts == 1 || kRowBlocks == 1, "there are no registers for more");

 public:
  using Params = ScaledGemmParams;
  struct Shared {
    Stage stage[C.stages];
    StoreStaging<C.store_buffers> staging[kConsumerWarps];
    alignas(128) float x_scale[C.stages][C.x_scale_room()];
    alignas(16) float w_scale[C.stages][kRun];
    Pipe pipe;
  };

  TILEWISE_INLINE static void run(const ScaledGemmParams& p, Shared& shared) {
    run_kernel<Machine, C.kConsumers, C.cluster>(
        [&]() TILEWISE_INLINE_LAMBDA {
          shared.pipe.init(kConsumerWarps);
          prefetch_maps<Machine>(p.gemm.x_map, p.gemm.w_map, p.gemm.out_map, p.x_scale_map);
        },
        [&](int) TILEWISE_INLINE_LAMBDA {
          if (Machine::thread() == 0) produce(p, shared);
        },
        [&](int32_t warpgroup) TILEWISE_INLINE_LAMBDA { Consumer(p, shared, warpgroup).run(); });
  }

 private:
  TILEWISE_INLINE static void produce(const ScaledGemmParams& p, Shared& shared) {
    constexpr int32_t kBytes = Stage::kBytes + C.x_scale_box() * sizeof(float) + sizeof shared.w_scale[0];
    ProducerPlace<Pipe> place(shared.pipe);
    for (Tiles tiles(p.gemm); tiles.has_tile(); tiles.advance()) {
      const GemmTile tile = tiles.tile();
      const float* const w_scale = scales_of(p, tile);
      TILEWISE_NO_UNROLL
      for (int32_t step = 0; step < p.gemm.steps; ++step, place.advance()) {
        Barrier<Machine>& full = place.begin(kBytes);
        load_operands<Machine, C>(p.gemm, shared.stage[place.stage()], full, tile, step);
        Machine::copy_box(shared.x_scale[place.stage()], p.x_scale_map, full.state(), tile.row / 4 * 4, step);
        Machine::copy_run(shared.w_scale[place.stage()], w_scale + step / kRun * kRun, sizeof shared.w_scale[0],
                          full.state());
      }
    }
  }

  /// Of a tile past n the last ones: whatever they are, nothing is stored.
  TILEWISE_INLINE static const float* scales_of(const ScaledGemmParams& p, const GemmTile& tile) {
    const int32_t row = minimum(tile.col, p.gemm.n - 1) / kBlock;
    return p.w_scale + tile.expert * p.w_scale_expert_stride + row * p.w_scale_stride;
  }

  class Consumer {
   public:
    TILEWISE_INLINE Consumer(const ScaledGemmParams& params, Shared& shared, int32_t warpgroup)
        : p_(params),
          shared_(shared),
          first_row_(warpgroup * 64 * kRowBlocks),
          lane_row_(first_row_ + warp_row<Machine>() + Machine::lane() / 4),
          scale_row_(lane_row_),
          place_(shared.pipe) {}

    TILEWISE_INLINE void run() {
      const GemmEpilogue<Machine, C> epilogue(p_.gemm, shared_.staging[Machine::wave() - 4],
                                              first_row_ + warp_row<Machine>());
      for (Tiles tiles(p_.gemm); tiles.has_tile(); tiles.advance()) {
        for (Sums& sums : sums_) sums.clear();
        if constexpr (C.grouped) scale_row_ = lane_row_ + tiles.tile().row % 4;
        if constexpr (C.parts == 1) multiply();
        if constexpr (C.parts == 2) multiply_in_turn();
        epilogue.finish_tile(sums_, tiles.tile());
      }
      epilogue.finish();
    }

   private:
    TILEWISE_INLINE void multiply() {
      TILEWISE_NO_UNROLL
      for (int32_t step = 0; step < p_.gemm.steps; ++step, place_.advance()) {
        place_.wait();
        TILEWISE_UNROLL
        for (int i = 0; i < kRowBlocks; ++i) {
          issue(part_[0], i);
          const PerRow factor = factors(i, step);
          Machine::template wgmma_wait<0>();
          pin_registers<Machine>(part_[0]);
          if (i == kRowBlocks - 1) place_.release();
          promote(sums_[i], part_[0], factor);
        }
      }
    }

    /// The mainloop of two parts, ping-pong: one is multiplied while the other is promoted. The first one's issue
    /// stands before the loop, since ptxas must see on every path that a part has been waited for before it is touched.
    TILEWISE_INLINE void multiply_in_turn() {
      begin_turn<0>(0);
      int32_t step = 1;
      TILEWISE_NO_UNROLL
      for (; step + 1 < p_.gemm.steps; step += 2) {
        begin_turn<1>(step);
        finish_turn<0, 1>();
        begin_turn<0>(step + 1);
        finish_turn<1, 1>();
      }
      if (step < p_.gemm.steps) {
        begin_turn<1>(step);
        finish_turn<0, 1>();
        finish_turn<1, 0>();
      } else {
        finish_turn<0, 0>();
      }
    }
    template <int kPart>
    TILEWISE_INLINE void begin_turn(int32_t step) {
      place_.wait();
      factor_[kPart] = factors(0, step);
      issue(part_[kPart], 0);
      place_.advance();
    }
    /// Ends the turn of a part behind which kPending others have been issued.
    template <int kPart, int kPending>
    TILEWISE_INLINE void finish_turn() {
      Machine::template wgmma_wait<kPending>();
      pin_registers<Machine>(part_[kPart]);
      place_.template release_before<kPending + 1>();
      promote(sums_[0], part_[kPart], factor_[kPart]);
    }

    TILEWISE_INLINE void issue(Sums& part, int row_block) {
      Stage& stage = shared_.stage[place_.stage()];
      pin_registers<Machine>(part);
      Machine::wgmma_fence();
      mma_ABt<Machine, C.type>(part.tile[0], stage.x, first_row_ + 64 * row_block, stage.w, false);
      Machine::wgmma_commit();
    }
    /// Returns the factors of this lane's rows at the stage.
    TILEWISE_INLINE PerRow factors(int row_block, int32_t step) const {
      const float* const x_scale = &shared_.x_scale[place_.stage()][scale_row_ + 64 * row_block];
      const float w_scale = Machine::template load_shared<float>(&shared_.w_scale[place_.stage()][step % kRun]);
      PerRow factor;
      TILEWISE_UNROLL
      for (int slot = 0; slot < 2; ++slot) {
        factor[slot] = Machine::template load_shared<float>(x_scale + 8 * slot) * w_scale;
      }
      return factor;
    }

    const ScaledGemmParams& p_;
    Shared& shared_;
    const int32_t first_row_, lane_row_;
    int32_t scale_row_;  // among those that a stage has
    ConsumerPlace<Pipe> place_;
    Sums sums_[kRowBlocks], part_[C.parts];
    PerRow factor_[C.parts];
  };
};

}  // namespace tilewise::device
