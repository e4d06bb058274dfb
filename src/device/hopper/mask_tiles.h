// What mask_mod leaves of each tile that Hopper's kernels may skip, found once before them: of attention, and of the
// sequences of a cache, whose queries are known by the keys that they stand at.
#pragma once

#include "device/attention/grid_place.h"
#include "device/attention/tile_class.h"
#include "device/hopper/config.h"
#include "device/hopper/params.h"
#include "device/kv_cache/sequence.h"
#include "device/tile/contract.h"

namespace tilewise::device {

/// A wave has a tile of own rows, part by part, and one that streams past.
template <TileOps Ops, auto C>
class HopperMaskTiles {
  using Machine = typename Ops::Machine;
  using Functions = FunctionsOf<C>;

 public:
  using Params = typename Functions::template ParamsOf<HopperMaskTilesParams>;
  using Shared = NoShared;

  TILEWISE_INLINE static void run(const Params& p, Shared&) {
    const GridPlace place = grid_place<Machine>(p.grid);
    const int32_t streamed = place.split * C.waves + Machine::wave();
    if (streamed >= p.classes.streamed) return;
    const Extents all = extents(p, place.batch);
    uint32_t found = 0;
    for (int32_t part = 0; part < C.parts; ++part) {
      const int32_t own = place.tile * C.parts + part;
      const TileSide queries = queries_of(all, C.keys_own ? streamed : own),
                     keys = side_of(C.keys_own ? own : streamed, C.keys_own ? C.own : C.streamed, all.keys);
      found |= static_cast<uint32_t>(TileClassifier<Machine, Functions>::class_of(p.tables, place.batch, queries, keys))
               << 2 * part;
    }
    if (Machine::lane() != 0) return;
    Machine::store_global(p.classes.data + place.batch * p.classes.batch_stride +
                              static_cast<int64_t>(place.tile) * p.classes.streamed + streamed,
                          static_cast<uint8_t>(found));
  }

 private:
  /// Query i has the q_idx first_query + i.
  struct Extents {
    int32_t queries, keys, first_query;
  };
  /// Of attention those that the longest sequence may have: what is found is the same for all of them, as a rule.
  TILEWISE_INLINE static Extents extents(const Params& p, int32_t batch) {
    if constexpr (C.cached) {
      const CachedSequence s = attended_sequence<C>(p.shape, p.cache, batch);
      const auto queries = static_cast<int32_t>(s.seqlen_q), keys = static_cast<int32_t>(s.seqlen_k);
      return {queries, keys, keys - queries};
    }
    return {static_cast<int32_t>(p.shape.seqlen_q), static_cast<int32_t>(p.shape.seqlen_k), 0};
  }
  TILEWISE_INLINE static TileSide queries_of(const Extents& all, int32_t tile) {
    const TileSide side = side_of(tile, C.keys_own ? C.streamed : C.own, all.queries);
    return {all.first_query + side.begin, all.first_query + side.end};
  }
};

}  // namespace tilewise::device
