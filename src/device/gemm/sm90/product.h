// out = activation(x w^T + bias) of 16-bit elements: a persistent block per multiprocessor, a thread that loads by TMA,
// two warpgroups that multiply, each warp storing its own rows while the next tile's operands land.
#pragma once

#include "device/gemm/sm90/finish.h"
#include "device/gemm/sm90/mainloop.h"
#include "device/sm90/contract.h"
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
    run_kernel<Machine, C.kConsumers, C.cluster>(
        [&]() TILEWISE_INLINE_LAMBDA {
          shared.pipe.init(kConsumerWarps);
          prefetch_maps<Machine>(p.x_map, p.w_map, p.out_map);
        },
        [&](int) TILEWISE_INLINE_LAMBDA {
          if (Machine::thread() == 0) produce(p, shared);
        },
        [&](int32_t warpgroup) TILEWISE_INLINE_LAMBDA { consume(p, shared, warpgroup); });
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
      multiply_tile<Machine, C>(sums, shared.stage, place, first_row, p.steps);
      epilogue.finish_tile(sums, tiles.tile());
    }
    epilogue.finish();
  }
};

}  // namespace tilewise::device
