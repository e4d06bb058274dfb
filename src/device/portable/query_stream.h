// The streamed side of the backward pass for keys: tiles of a head's queries, of the gradients of their
// outputs and of the two statistics of each query, head after head of the group.
#pragma once

#include "device/portable/gradients.h"
#include "device/portable/key_block.h"
#include "device/portable/loader.h"

namespace tilewise::device {

/// Of two neighbouring queries, which a lane that holds both columns brings with one load.
struct alignas(16) TwoStatistics {
  float lse[2], delta[2];
};

/// One tile on its way or being computed on. The uses are TileUse bits.
template <class Ops, KernelConfig C, int kQueryUse, int kDoutUse>
struct QueryStage {
  StreamTile<C.tile_cols, C.head_dim, kQueryUse, Ops::kTransposedCopies> queries;
  StreamTile<C.tile_cols, C.head_dim_v, kDoutUse, Ops::kTransposedCopies> douts;
  TwoStatistics statistics[C.tile_cols / 2];

  /// Of column `col` and of its neighbour.
  TILEWISE_INLINE TwoStatistics two_statistics(int col) const {
    return Ops::Machine::template load_shared<TwoStatistics>(&statistics[col / 2]);
  }
};

template <class Ops, KernelConfig C, class Stage>
class QueryStream {
  using Machine = typename Ops::Machine;
  static_assert(C.waves * Machine::kLanes >= C.tile_cols, "a thread brings the statistics of one query");

 public:
  /// visit(tile's stage, its place, masked) for tiles [begin, end) of those that the block's keys see, counted over
  /// the heads of the group. `stages`: C.stages of them, through which tiles pass in turn.
  template <class Visit>
  TILEWISE_INLINE void walk(Stage* stages, const KeyBlock<C>& block, const GridParams& grid, const StreamedTiles& tiles,
                            int32_t begin, int32_t end, const Visit& visit) {
    // Copies under way write where a lone stage is being read.
    constexpr bool kAhead = C.stages > 1 || !Ops::kAsyncCopies;
    QueryPosition at = block.position(tiles, begin);
    start(stages[begin % C.stages], block, grid, at);
    while (at.step < end) {
      const QueryPosition next = at.next(tiles);
      Stage& current = stages[at.step % C.stages];
      finish(current);
      if (kAhead && next.step < end) start(stages[next.step % C.stages], block, grid, next);
      visit(current, at, C.ranged && !tiles.is_full(at.tile));
      if (!kAhead && next.step < end) {
        Machine::barrier();  // the tile was read by all
        start(current, block, grid, next);
      }
      at = next;
    }
  }

 private:
  TILEWISE_INLINE void start(Stage& stage, const KeyBlock<C>& block, const GridParams& grid, const QueryPosition& at) {
    const int32_t first = at.tile * C.tile_cols;
    queries_.start(stage.queries, block.query_source(block.p.q, at.head, block.p.head_dim), first);
    douts_.start(stage.douts, block.query_source(block.p.dout, at.head, block.p.head_dim_v), first);
    const int thread = Machine::thread();
    if (thread < C.tile_cols) {
      statistics_ = load_statistics<Machine>(block.p, grid, block.sequence, block.place.batch, at.head, first + thread);
    }
  }

  /// Once it returns, every lane may read the tile, and has done with the one before.
  TILEWISE_INLINE void finish(Stage& stage) {
    if constexpr (C.stages == 1) Machine::barrier();  // the last tile was read by all
    Ops::finish_copies();
    queries_.finish(stage.queries);
    douts_.finish(stage.douts);
    const int thread = Machine::thread();
    if (thread < C.tile_cols) {
      TwoStatistics& two = stage.statistics[thread / 2];
      Machine::store_shared(&two.lse[thread % 2], statistics_.lse);
      Machine::store_shared(&two.delta[thread % 2], statistics_.delta);
    }
    Machine::barrier();
  }

  TileLoader<Ops, C, decltype(Stage::queries)> queries_;
  TileLoader<Ops, C, decltype(Stage::douts)> douts_;
  QueryStatistics statistics_;
};

}  // namespace tilewise::device
