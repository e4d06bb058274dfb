// out = activation(x w^T + bias) of 16-bit elements: a persistent block per multiprocessor, a thread that loads by TMA,
// two warpgroups that multiply, each warp storing its own rows while the next tile's operands land.
#pragma once

#include "device/gemm/sm90/finish.h"
#include "device/sm90/contract.h"
#include "device/sm90/mma.h"
#include "device/sm90/roles.h"

namespace tilewise::device {

template <Sm90TileOps Ops, GemmConfig C>
class Sm90Gemm {
  using Machine = typename Ops::Machine;
  using Stage = GemmStage<C>;
  using Pipe = Pipeline<Machine, C.stages, C.cluster>;
  using Sums = Fragment<Ops, 16, C.block_n>;
  using Tiles = GemmTiles<Machine, C>;
  static constexpr int kRowBlocks = C.row_blocks(), kConsumerWarps = 4 * C.kConsumers;

 public:
  using Params = GemmParams;
  struct Shared {
    Stage stage[C.stages];
    StoreStaging<C.store_buffers> staging[kConsumerWarps];
    Pipe pipe;
  };

  TILEWISE_INLINE static void run(const GemmParams& p, Shared& shared) {
    if (Machine::thread() == 0) {
      shared.pipe.init(kConsumerWarps);
      Machine::publish_barriers();
      Machine::prefetch_map(p.x_map), Machine::prefetch_map(p.w_map), Machine::prefetch_map(p.out_map);
    }
    meet_cluster<Machine, C.cluster>();
    let_next_step_begin<Machine>();
    wait_for_step_before<Machine>();
    run_roles<Machine, C.kConsumers>(
        [&](int) TILEWISE_INLINE_LAMBDA {
          if (Machine::thread() == 0) produce(p, shared);
        },
        [&](int32_t warpgroup) TILEWISE_INLINE_LAMBDA { consume(p, shared, warpgroup); });
    leave_cluster<Machine, C.cluster>();
  }

 private:
  TILEWISE_INLINE static void produce(const GemmParams& p, Shared& shared) {
    ProducerPlace<Pipe> place(shared.pipe);
    for (Tiles tiles(p); tiles.has_tile(); tiles.advance()) {
      const GemmTile tile = tiles.tile();
      TILEWISE_NO_UNROLL
      for (int32_t step = 0; step < p.steps; ++step, place.advance()) {
        load_operands<Machine, C>(p, shared.stage[place.stage()], place.begin(Stage::kBytes), tile, step);
      }
    }
  }

  TILEWISE_INLINE static void consume(const GemmParams& p, Shared& shared, int32_t warpgroup) {
    const int32_t first_row = warpgroup * 64 * kRowBlocks;
    const GemmEpilogue<Machine, C> epilogue(p, shared.staging[Machine::wave() - 4], first_row + warp_row<Machine>());
    ConsumerPlace<Pipe> place(shared.pipe);
    Sums sums[kRowBlocks];
    for (Tiles tiles(p); tiles.has_tile(); tiles.advance()) {
      multiply(sums, shared, place, first_row, p.steps);
      epilogue.finish_tile(sums, tiles.tile());
    }
    epilogue.finish();
  }

  /// The mainloop over a tile's steps. A step's products are issued before those of the step before are waited for.
  TILEWISE_INLINE static void multiply(Sums (&sums)[kRowBlocks], Shared& shared, ConsumerPlace<Pipe>& place,
                                       int32_t first_row, int32_t steps) {
    for (Sums& part : sums) pin_registers<Machine>(part);
    TILEWISE_NO_UNROLL
    for (int32_t step = 0; step < steps; ++step, place.advance()) {
      place.wait();
      Stage& stage = shared.stage[place.stage()];
      Machine::wgmma_fence();
      TILEWISE_UNROLL
      for (int i = 0; i < kRowBlocks; ++i) {
        if constexpr (C.w_mn_major) {
          mma_AB<Machine, C.type>(sums[i].tile[0], stage.x, first_row + 64 * i, stage.w, step > 0);
        } else {
          mma_ABt<Machine, C.type>(sums[i].tile[0], stage.x, first_row + 64 * i, stage.w, step > 0);
        }
      }
      Machine::wgmma_commit();
      Machine::template wgmma_wait<1>();
      if (step > 0) place.release_before();
    }
    Machine::template wgmma_wait<0>();
    for (Sums& part : sums) pin_registers<Machine>(part);
    place.release_before();
  }
};

}  // namespace tilewise::device
