// Shared memory of the backward kernel, and what its warps tell each other through it.
#pragma once

#include "device/hopper/config.h"
#include "device/hopper/mbarrier.h"
#include "device/hopper/swizzled_tile.h"

namespace tilewise::device {

/// dq's products of a tile of queries, cut into parts of 64 rows and up to 64 columns, which a warpgroup's registers
/// hold one after the other.
template <HopperBwdConfig C>
struct DqParts {
  static constexpr int kChunks = (C.head_dim + 63) / 64, kCount = kChunks * C.block_m / 64;
  static constexpr int row_chunk(int part) { return part / kChunks; }
  static constexpr int col_chunk(int part) { return part % kChunks; }
  static constexpr int cols(int part) { return minimum(64, C.head_dim - 64 * col_chunk(part)); }
  /// Where a warp's sums of a part stand behind those of the tile's first one.
  static constexpr int place(int part) { return row_chunk(part) * (64 * C.head_dim) + col_chunk(part) * (16 * 64); }
  /// Parts staged at once: the one before leaves while the next one is multiplied.
  static constexpr int kStaged = 2;
  static_assert(kCount <= kStaged);
  TILEWISE_INLINE static constexpr int staged(int part, int32_t step) { return kCount == 1 ? step % kStaged : part; }
  static constexpr int kWarpFloats = 16 * 64;  // of a part, at most
};

template <class Machine, HopperBwdConfig C>
struct HopperBwdShared {
  using KeyTile = SwizzledTile<C.block_n(), C.head_dim>;
  using ValueTile = SwizzledTile<C.block_n(), C.head_dim_v>;
  using QueryTile = SwizzledTile<C.block_m, C.head_dim>;
  using DoutTile = SwizzledTile<C.block_m, C.head_dim_v>;
  using ScoreTile = SwizzledTile<C.block_n(), C.block_m>;  // rows are keys

  KeyTile keys;      // and dk on its way out
  ValueTile values;  // and dv
  QueryTile queries[C.stages];
  DoutTile douts[C.stages];
  ScoreTile dS[C.kScoreStages];
  float dq[4][DqParts<C>::kStaged][DqParts<C>::kWarpFloats];  // of each warp
  float lse2[C.stages][C.block_m];
  float delta[C.stages][C.block_m];
  Ring<Machine, C.stages> tile_ring;         // of Q, dO and their statistics
  Ring<Machine, C.kScoreStages> score_ring;  // of dS
  Barrier<Machine> keys_full, values_full;
  Barrier<Machine> keys_done;  // dq's last product has read K
  Barrier<Machine> landed;     // what is to be cleared beyond a sequence's end

  /// By one thread, before any other looks at them.
  TILEWISE_INLINE void init_barriers() {
    constexpr int32_t kMainWarps = 4 * C.kConsumers, kDqWarps = 4;
    tile_ring.init(1, kMainWarps);
    score_ring.init(kMainWarps, kDqWarps);
    keys_full.init(1), values_full.init(1);
    keys_done.init(kDqWarps);
    landed.init(1);
    Machine::publish_barriers();
  }
};

}  // namespace tilewise::device
