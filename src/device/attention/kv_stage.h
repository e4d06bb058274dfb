// A stage of the streamed side: one tile of keys and one of values.
#pragma once

#include "device/attention/config.h"
#include "device/tile/stream_tile.h"

namespace tilewise::device {

/// One tile on its way or being computed on. The uses are TileUse bits.
template <class Ops, auto C, int kKUse, int kVUse>
struct KvStage {
  StreamTile<C.k_type, C.block_n, C.head_dim, kKUse, Ops::kTransposedCopies> k;
  StreamTile<C.v_type, C.block_n, C.head_dim_v, kVUse, Ops::kTransposedCopies> v;
};

/// Stages whose tiles of keys, and of values, lie side by side: from each side's first one all are within an
/// immediate's reach.
template <class Stage, int kStages>
struct StagesBySide {
  decltype(Stage::k) k[kStages];
  decltype(Stage::v) v[kStages];
};

}  // namespace tilewise::device
