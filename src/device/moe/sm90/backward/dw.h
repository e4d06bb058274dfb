// Gradients of experts' weights: a tile is a sum over all rows of an expert, and both operands lie with their columns
// along the tile's sides. A persistent block per multiprocessor; one thread loads by TMA, one warp clears what a stage
// has of the next expert's rows, two warpgroups multiply, and each warp stores its own rows while the next tile's
// operands land.
#pragma once

#include "device/moe/sm90/backward/config.h"
#include "device/moe/sm90/backward/params.h"
#include "device/sm90/contract.h"
#include "device/sm90/epilogue.h"
#include "device/sm90/load.h"
#include "device/sm90/mma.h"
#include "device/sm90/pipeline.h"
#include "device/sm90/roles.h"
#include "device/sm90/scheduler.h"

namespace tilewise::device {

template <Sm90TileOps Ops, MoeDwConfig C>
class Sm90MoeDw {
  using Machine = typename Ops::Machine;
  struct Stage {
    using A = SwizzledTile<C.depth, C.kBlockM>;
    using B = SwizzledTile<C.depth, C.block_n>;
    static constexpr int32_t kBytes = A::kBytes + B::kBytes;
    A a;
    B b;
  };
  using Pipe = Pipeline<Machine, C.stages, C.cluster>;
  using Sums = Fragment<Ops, 16, C.block_n>;
  using Store = BoxStore<Machine, C.type, C.store_buffers>;
  static constexpr int kConsumerWarps = 4 * C.kConsumers;
  static constexpr int kStepRows = kStepDepth<C.type>, kSteps = C.depth / kStepRows;  // of a product's instruction
  /// The block's part of a cluster's tile, and the rows that are summed.
  struct Tile {
    int32_t expert, row, col, begin, end;
  };

 public:
  using Params = MoeDwParams;
  struct Shared {
    Stage stage[C.stages];
    typename Store::Staging staging[kConsumerWarps];
    Pipe pipe;
    Barrier<Machine> landed[C.stages];  // the bytes of a stage, before it is cleared
  };

  TILEWISE_INLINE static void run(const MoeDwParams& p, Shared& shared) {
    run_kernel<Machine, C.kConsumers, C.cluster>(
        [&]() TILEWISE_INLINE_LAMBDA {
          shared.pipe.init(kConsumerWarps);
          for (auto& barrier : shared.landed) barrier.init(1);
          prefetch_maps<Machine>(p.a_map, p.b_map, p.out_map);
        },
        [&](int warp) TILEWISE_INLINE_LAMBDA {
          if (Machine::thread() == 0) load(p, shared);
          if (warp == 1) clear(p, shared);
        },
        [&](int32_t warpgroup) TILEWISE_INLINE_LAMBDA { consume(p, shared, warpgroup); });
  }

 private:
  /// Expert after expert, each one's tiles in the order of the grid.
  template <class Visit>
  TILEWISE_INLINE static void for_each_tile(const MoeDwParams& p, const Visit& visit) {
    const int32_t rank = C.cluster > 1 ? Machine::rank_in_cluster() : 0, count = p.grid.count();
    for (StaticScheduler<Machine, C.cluster> tiles(count * p.num_experts); tiles.has_tile(); tiles.advance()) {
      const int32_t expert = tiles.number() / count;
      const TilePlace place = p.grid.place(tiles.number() - expert * count);
      visit(Tile{expert, (place.row * C.cluster + rank) * C.kBlockM, place.col * C.block_n,
                 Machine::load_global(p.offsets + expert), Machine::load_global(p.offsets + expert + 1)});
    }
  }

  TILEWISE_INLINE static void load(const MoeDwParams& p, Shared& shared) {
    ProducerPlace<Pipe> place(shared.pipe);
    for_each_tile(p, [&](const Tile& tile) TILEWISE_INLINE_LAMBDA {
      TILEWISE_NO_UNROLL
      for (int32_t row = tile.begin; row < tile.end; row += C.depth, place.advance()) {
        place.wait();
        Stage& stage = shared.stage[place.stage()];
        Barrier<Machine>& landed = shared.landed[place.stage()];
        landed.arrive_and_expect(Stage::kBytes);
        load_tile(stage.a, p.a_map, landed, tile.row, row);
        load_share<C.cluster>(stage.b, p.b_map, landed, tile.col, row);
      }
    });
  }

  /// Zeros take the place of rows behind the expert's that are multiplied, in both operands: whatever those are, even
  /// NaN times 0 is NaN.
  TILEWISE_INLINE static void clear(const MoeDwParams& p, Shared& shared) {
    RingPlace<C.stages> place;
    for_each_tile(p, [&](const Tile& tile) TILEWISE_INLINE_LAMBDA {
      TILEWISE_NO_UNROLL
      for (int32_t row = tile.begin; row < tile.end; row += C.depth, place.advance()) {
        shared.landed[place.stage].wait(place.parity);
        if (const int32_t rest = tile.end - row; rest < C.depth && rest % kStepRows != 0) {
          Stage& stage = shared.stage[place.stage];
          clear_rows(stage.a, rest);
          clear_rows(stage.b, rest);
          Machine::fence_shared_writes();
        }
        arrive_as_warp(shared.pipe.ring.full[place.stage]);
      }
    });
  }
  template <class Operand>
  TILEWISE_INLINE static void clear_rows(Operand& tile, int32_t first) {
    constexpr int kPieces = Operand::kRowPieces;
    const int32_t end = ceil_div(first, kStepRows) * kStepRows;
    TILEWISE_UNROLL
    for (int chunk = 0; chunk < Operand::kChunks; ++chunk) {
      TILEWISE_NO_UNROLL
      for (int32_t i = first * kPieces + Machine::lane(); i < end * kPieces; i += Machine::kLanes) {
        Machine::store_shared(reinterpret_cast<Chunk*>(tile.chunk(chunk) + 16 * i), Chunk{});
      }
    }
  }

  TILEWISE_INLINE static void consume(const MoeDwParams& p, Shared& shared, int32_t warpgroup) {
    const Store store(shared.staging[Machine::wave() - 4]);
    ConsumerPlace<Pipe> place(shared.pipe);
    Sums sums[1];
    for_each_tile(p, [&](const Tile& tile) TILEWISE_INLINE_LAMBDA {
      multiply(sums[0], shared, place, warpgroup * 64, tile.end - tile.begin);
      store.store(
          sums, [](float x) TILEWISE_INLINE_LAMBDA { return x; }, p.out_map, tile.col,
          tile.row + warpgroup * 64 + warp_row<Machine>(), tile.expert);
    });
    store.finish();
  }

  /// An expert without rows has sums of 0.
  TILEWISE_INLINE static void multiply(Sums& sums, Shared& shared, ConsumerPlace<Pipe>& place, int32_t first_col,
                                       int32_t rows) {
    sums.clear();
    pin_registers<Machine>(sums);
    if (rows <= 0) return;
    bool first = true;
    TILEWISE_NO_UNROLL
    for (; rows > C.depth; rows -= C.depth, first = false) {
      multiply_stage<kSteps>(sums, shared, place, first_col, first);
    }
    multiply_last<1>(sums, shared, place, first_col, rows, first);
    Machine::template wgmma_wait<0>();
    pin_registers<Machine>(sums);
    place.release_before();
  }
  /// Of as many steps as its rows take.
  template <int kCount>
  TILEWISE_INLINE static void multiply_last(Sums& sums, Shared& shared, ConsumerPlace<Pipe>& place, int32_t first_col,
                                            int32_t rows, bool first) {
    if constexpr (kCount < kSteps) {
      if (rows > kCount * kStepRows) {
        return multiply_last<kCount + 1>(sums, shared, place, first_col, rows, first);
      }
    }
    multiply_stage<kCount>(sums, shared, place, first_col, first);
  }
  template <int kCount>
  TILEWISE_INLINE static void multiply_stage(Sums& sums, Shared& shared, ConsumerPlace<Pipe>& place, int32_t first_col,
                                             bool first) {
    place.wait();
    Stage& stage = shared.stage[place.stage()];
    Machine::wgmma_fence();
    mma_AtB<Machine, C.type, kCount>(sums.tile[0], stage.a, first_col, stage.b, true);
    Machine::wgmma_commit();
    Machine::template wgmma_wait<1>();
    if (!first) place.release_before();
    place.advance();
  }
};

}  // namespace tilewise::device
