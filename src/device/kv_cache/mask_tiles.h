// What mask_mod leaves of each tile of a cache's keys, found once before the kernel that attends over it, as
// device/attention/mask_tiles.h does for attention.
#pragma once

#include "device/attention/grid_place.h"
#include "device/attention/tile_class.h"
#include "device/kv_cache/config.h"
#include "device/kv_cache/sequence.h"
#include "device/tile/contract.h"

namespace tilewise::device {

/// A wave has a tile of keys, and the queries of a block's rows.
template <TileOps Ops, auto C>
class KvCacheMaskTiles {
  using Machine = typename Ops::Machine;
  using Functions = FunctionsOf<C>;

 public:
  using Params = typename Functions::template ParamsOf<KvCacheMaskTilesParams>;
  using Shared = NoShared;

  TILEWISE_INLINE static void run(const Params& p, Shared&) {
    const GridPlace place = grid_place<Machine>(p.grid);
    const int32_t tile = place.split * C.waves + Machine::wave();
    if (tile >= p.classes.streamed) return;
    const CachedSequence s = attended_sequence<C>(p.shape, p.cache, place.batch);
    const TileSide keys = side_of(tile, C.streamed, s.seqlen_k);
    const TileClass found =
        TileClassifier<Machine, Functions>::class_of(p.tables, place.batch, positions(p, s, place.tile), keys);
    if (Machine::lane() != 0) return;
    Machine::store_global(p.classes.data + place.batch * p.classes.batch_stride +
                              static_cast<int64_t>(place.tile) * p.classes.streamed + tile,
                          static_cast<uint8_t>(found));
  }

 private:
  /// The keys that a block's queries stand at. Rows of packed heads are (query, head of the group) pairs.
  TILEWISE_INLINE static TileSide positions(const Params& p, const Sequence& s, int32_t tile) {
    const int32_t group = C.packs_heads ? p.grid.group : 1;
    const auto rows = static_cast<int32_t>(s.seqlen_q) * group,
               diagonal = static_cast<int32_t>(s.seqlen_k - s.seqlen_q);
    const TileSide own = side_of(tile, C.own, rows);
    return {diagonal + own.begin / group, diagonal + ceil_div(own.end, group)};
  }
};

}  // namespace tilewise::device
