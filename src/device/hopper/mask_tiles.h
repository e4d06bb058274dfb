// What mask_mod leaves of each tile that Hopper's kernels may skip, found once before them: of attention, and of the
// sequences of a cache, whose queries are known by the keys that they stand at.
#pragma once

#include "device/attention/grid_place.h"
#include "device/attention/tile_class.h"
#include "device/hopper/config.h"
#include "device/hopper/params.h"
#include "device/hopper/tile_walk.h"
#include "device/kv_cache/sequence.h"
#include "device/tile/contract.h"

namespace tilewise::device {

/// The classifier knows of sequences: here the number of one has a head's in its upper bits.
template <class Base>
struct FunctionsOfHeads : Base {
  TILEWISE_INLINE static constexpr int32_t entry(int32_t batch, int32_t head) { return head << kBits | batch; }

  template <class Machine, class Query, class Key>
  TILEWISE_INLINE static bool sees(const ScoreTable (&tables)[kMostTables], int32_t entry, int32_t, Query q_idx,
                                   Key kv_idx) {
    return Base::template sees<Machine>(tables, entry & kMask, entry >> kBits, q_idx, kv_idx);
  }
  template <class Machine>
  TILEWISE_INLINE static Bounds sees_within(const ScoreTable (&tables)[kMostTables], const Bounds& entry, const Bounds&,
                                            const Bounds& q_idx, const Bounds& kv_idx) {
    const int64_t batch = entry.low & kMask, head = entry.low >> kBits;
    return Base::template sees_within<Machine>(tables, Bounds{batch, batch}, Bounds{head, head}, q_idx, kv_idx);
  }

 private:
  static constexpr int32_t kBits = HopperMaskTilesConfig::kBatchBits, kMask = (1 << kBits) - 1;
};

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
      found |= static_cast<uint32_t>(class_of(p, place, queries, keys)) << 2 * part;
    }
    if (Machine::lane() != 0) return;
    const int64_t row = int64_t{place.head} * p.grid.num_tiles + place.tile;
    Machine::store_global(p.classes.data + place.batch * p.classes.batch_stride + row * p.classes.streamed + streamed,
                          static_cast<uint8_t>(found));
  }

 private:
  /// Heads that share a class are seen, or hidden, if each of them is.
  TILEWISE_INLINE static TileClass class_of(const Params& p, const GridPlace& place, const TileSide& queries,
                                            const TileSide& keys) {
    if constexpr (tells_heads_apart<C>()) {
      using OfHeads = FunctionsOfHeads<Functions>;
      TileClass found = kTileHidden;
      TILEWISE_NO_UNROLL
      for (int32_t i = 0; i < p.grid.group; ++i) {
        const int32_t entry = OfHeads::entry(place.batch, place.head * p.grid.group + i);
        const TileClass of_head = TileClassifier<Machine, OfHeads>::class_of(p.tables, entry, queries, keys);
        found = i == 0 || of_head == found ? of_head : kTileMixed;
      }
      return found;
    } else {
      return TileClassifier<Machine, Functions>::class_of(p.tables, place.batch, queries, keys);
    }
  }

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
