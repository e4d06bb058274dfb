// The streamed side of the kernels that own keys: tiles of a head's queries, of the gradients of their outputs and of
// the two statistics of each query, head after head of the group.
#pragma once

#include "device/attention/block_keys.h"
#include "device/attention/bwd_scores.h"
#include "device/attention/config.h"
#include "device/tile/steady_loader.h"

namespace tilewise::device {

/// Of two neighbouring queries, which a lane that holds both columns fetches with one load.
struct alignas(16) TwoStatistics {
  float lse[2], delta[2];
};

/// One tile on its way or being computed on. The uses are TileUse bits.
template <class Ops, auto C, int kQUse, int kDoUse>
struct QDoStage {
  StreamTile<C.q_type, C.block_m, C.head_dim, kQUse, Ops::kTransposedCopies> q;
  StreamTile<C.out_type, C.block_m, C.head_dim_v, kDoUse, Ops::kTransposedCopies> dout;
  TwoStatistics statistics[C.block_m / 2];

  /// Of column `col` and of its neighbour.
  TILEWISE_INLINE TwoStatistics two_statistics(int col) const {
    return Ops::Machine::template load_shared<TwoStatistics>(&statistics[col / 2]);
  }
};

/// Tiles pass through C.stages stages in turn. kByParts: whoever visits a tile asks for the next one, part by part.
template <class Ops, auto C, class Stage, bool kByParts = false>
class QDoPipeline {
  using Machine = typename Ops::Machine;
  using QTile = decltype(Stage::q);
  using DoTile = decltype(Stage::dout);
  struct Loaders {
    TileLoader<Ops, C, QTile, has_few_registers<Ops>(C)> q;
    TileLoader<Ops, C, DoTile, has_few_registers<Ops>(C)> dout;
  };
  static_assert(C.waves * Machine::kLanes >= C.block_m, "a thread loads the statistics of one query");

 public:
  /// visit(tile's stage, its place, masked) for tiles [begin, end) of those that see the block's keys, counted over
  /// the heads of the group.
  template <class Keys, class Visit>
  TILEWISE_INLINE void walk(Stage (&stages)[C.stages], const Keys& keys, const TileRange& tiles, int32_t begin,
                            int32_t end, const Visit& visit) {
    // Copies under way write where a lone stage is being read.
    constexpr bool kAhead = C.stages > 1 || !Ops::kAsyncCopies;
    const SeenTiles<Machine, C> seen(keys.p, keys.place.batch, keys.place.tile);
    const auto first_seen = [&](QueryPosition from) {
      while (skips_tiles<C>() && from.step < end && !seen.sees(from.tile)) from = from.next(tiles);
      return from;
    };
    QueryPosition at = first_seen(keys.position(tiles, begin));
    if (skips_tiles<C>() && at.step >= end) {
      Ops::finish_copies();  // the block's own rows are on their way to what its results take the place of
      Machine::barrier();
      return;
    }
    int32_t turn = at.step;
    if constexpr (kByParts) {
      open(keys, at);
      ask_for(keys, at);
      loaders_.load_all();
    } else {
      start(stages[turn % C.stages], keys, at);
    }
    for (; at.step < end; ++turn) {
      const QueryPosition next = first_seen(at.next(tiles));
      Stage& stage = stages[turn % C.stages];
      wait(stage);
      if constexpr (kByParts) {
        // After the last tile that one again, which costs less than a branch.
        QueryPosition asked = at;
        if (next.step < end) asked = next;
        if (asked.head != at.head) open(keys, asked);
        ask_for(keys, asked);
      } else if (kAhead && next.step < end) {
        start(stages[(turn + 1) % C.stages], keys, next);
      }
      visit(stage, at, (C.ranged && !tiles.is_full(at.tile)) || seen.hides_of(at.tile));
      if constexpr (!kAhead) {
        if (next.step < end) {
          Machine::barrier();  // the tile was read by all
          start(stage, keys, next);
        }
      }
      at = next;
    }
  }

  /// Of the next tile: all of them in each visit, of the last tile too, in any places.
  static constexpr int parts() { return SteadyPair<Ops, C, QTile, DoTile>::kParts; }
  TILEWISE_INLINE void load_part(int part) { loaders_.load(part); }

 private:
  template <class Keys>
  TILEWISE_INLINE void ask_for(const Keys& keys, const QueryPosition& at) {
    loaders_.move_to(at.tile * C.block_m);
    load_statistics(keys, at);
  }
  template <class Keys>
  TILEWISE_INLINE void open(const Keys& keys, const QueryPosition& at) {
    const auto& p = keys.p;
    loaders_.open(keys.template columns_of<C.q_type>(p.q, at, p.shape.head_dim),
                  keys.template columns_of<C.out_type>(p.dout, at, p.shape.head_dim_v));
  }

  template <class Keys>
  TILEWISE_INLINE void start(Stage& stage, const Keys& keys, const QueryPosition& at) {
    const int32_t first = at.tile * C.block_m;
    const auto& p = keys.p;
    loaders_.q.start(stage.q, keys.template columns_of<C.q_type>(p.q, at, p.shape.head_dim), first);
    loaders_.dout.start(stage.dout, keys.template columns_of<C.out_type>(p.dout, at, p.shape.head_dim_v), first);
    load_statistics(keys, at);
  }
  template <class Keys>
  TILEWISE_INLINE void load_statistics(const Keys& keys, const QueryPosition& at) {
    const int thread = Machine::thread();
    if (thread < C.block_m) {
      statistics_ = load_plain_statistics<Machine>(keys.p, keys.sequence, keys.place.batch, keys.head_of(at, thread),
                                                   keys.query_of(at, thread));
    }
  }

  /// Once it returns, every lane may read the tile, and has done with the one before.
  TILEWISE_INLINE void wait(Stage& stage) {
    if constexpr (C.stages == 1) Machine::barrier();  // the last tile was read by all
    Ops::finish_copies();
    if constexpr (kByParts) {
      loaders_.store_all(stage.q, stage.dout);
    } else {
      loaders_.q.finish(stage.q);
      loaders_.dout.finish(stage.dout);
    }
    const int thread = Machine::thread();
    if (thread < C.block_m) {
      TwoStatistics& two = stage.statistics[thread / 2];
      const QueryStatistics of_query = usable<Machine>(statistics_);
      Machine::store_shared(&two.lse[thread % 2], of_query.lse);
      Machine::store_shared(&two.delta[thread % 2], of_query.delta);
    }
    Machine::barrier();
  }

  Choose<kByParts, SteadyPair<Ops, C, QTile, DoTile>, Loaders> loaders_;
  QueryStatistics statistics_;
};

}  // namespace tilewise::device
