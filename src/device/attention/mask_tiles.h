// What mask_mod leaves of each tile of queries and keys, found once before kernels that would ask for each score: tiles
// of which nothing is seen they skip, and of those that are seen whole they ask nothing.
#pragma once

#include "device/attention/config.h"
#include "device/attention/grid_place.h"
#include "device/attention/params.h"
#include "device/tile/contract.h"

namespace tilewise::device {

template <TileOps Ops, auto C>
class MaskTiles {
  using Machine = typename Ops::Machine;
  using Functions = FunctionsOf<C>;

 public:
  using Params = typename Functions::template ParamsOf<MaskTilesParams>;
  using Shared = NoShared;

  TILEWISE_INLINE static void run(const Params& p, Shared&) {
    const GridPlace place = grid_place<Machine>(p.grid);
    const int32_t streamed = place.split * C.waves + Machine::wave();
    if (streamed >= p.classes.streamed) return;
    const Rows own = rows_of(place.tile, C.own, C.keys_own ? p.shape.seqlen_k : p.shape.seqlen_q);
    const Rows other = rows_of(streamed, C.streamed, C.keys_own ? p.shape.seqlen_q : p.shape.seqlen_k);
    const uint8_t found = C.keys_own ? class_of(p, place.batch, other, own) : class_of(p, place.batch, own, other);
    if (Machine::lane() != 0) return;
    Machine::store_global(p.classes.data + place.batch * p.classes.batch_stride +
                              static_cast<int64_t>(place.tile) * p.classes.streamed + streamed,
                          found);
  }

 private:
  struct Rows {
    int32_t begin, end;
  };
  TILEWISE_INLINE static Rows rows_of(int32_t tile, int32_t size, int64_t all) {
    return {tile * size, minimum((tile + 1) * size, static_cast<int32_t>(all))};
  }

  /// Lanes take keys side by side. A tile of which some is seen and some is not needs no further look.
  TILEWISE_INLINE static uint8_t class_of(const Params& p, int32_t batch, const Rows& queries, const Rows& keys) {
    bool sees = false, hides = false;
    TILEWISE_NO_UNROLL
    for (int32_t query = queries.begin; query < queries.end; ++query) {
      for (int32_t key = keys.begin + Machine::lane(); key < keys.end; key += Machine::kLanes) {
        const bool seen = Functions::template sees<Machine>(p.tables, batch, 0, query, key);
        sees |= seen;
        hides |= !seen;
      }
      if (Machine::any(sees) && Machine::any(hides)) return kTileMixed;
    }
    return Machine::any(sees) ? kTileSeen : kTileHidden;
  }
};

}  // namespace tilewise::device
