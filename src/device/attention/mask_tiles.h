// What mask_mod leaves of each tile of queries and keys, found once before kernels that would ask for each score: tiles
// of which nothing is seen they skip, and of those that are seen whole they ask nothing.
#pragma once

#include "device/attention/config.h"
#include "device/attention/grid_place.h"
#include "device/attention/params.h"
#include "device/attention/tile_class.h"
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
    const TileSide other = side_of(streamed, C.streamed, C.keys_own ? p.shape.seqlen_q : p.shape.seqlen_k);
    uint32_t found = 0;
    for (int part = 0; part < C.parts; ++part) {
      const TileSide own =
          side_of(place.tile * C.parts + part, C.own, C.keys_own ? p.shape.seqlen_k : p.shape.seqlen_q);
      const TileClass of_part = TileClassifier<Machine, Functions>::class_of(
          p.tables, place.batch, C.keys_own ? other : own, C.keys_own ? own : other);
      found |= static_cast<uint32_t>(of_part) << 2 * part;
    }
    if (Machine::lane() != 0) return;
    Machine::store_global(p.classes.data + place.batch * p.classes.batch_stride +
                              static_cast<int64_t>(place.tile) * p.classes.streamed + streamed,
                          static_cast<uint8_t>(found));
  }
};

}  // namespace tilewise::device
