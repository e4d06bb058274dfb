// What Hopper's products have in common: tiles of x and w in shared memory, how they get there, and where out begins.
#pragma once

#include "device/gemm/sm90/config.h"
#include "device/gemm/sm90/params.h"
#include "device/sm90/load.h"
#include "device/sm90/pipeline.h"
#include "device/sm90/scheduler.h"

namespace tilewise::device {

template <GemmConfig C>
struct GemmStage {
  using X = SwizzledTile<C.block_m, C.block_k(), C.element_bytes()>;
  using W =
      SwizzledTile<C.w_mn_major ? C.block_k() : C.block_n, C.w_mn_major ? C.block_n : C.block_k(), C.element_bytes()>;
  static constexpr int32_t kBytes = X::kBytes + W::kBytes;
  X x;
  W w;
};

/// Returns the row and column of out where this block's part of a cluster's tile begins.
template <class Machine, GemmConfig C>
TILEWISE_INLINE TilePlace tile_origin(const TileMatrix& grid, int32_t number) {
  const TilePlace place = grid.place(number);
  const int32_t rank = C.cluster > 1 ? Machine::rank_in_cluster() : 0;
  return {place.row * C.cluster_m() + (C.shares_x ? 0 : rank * C.block_m),
          place.col * C.cluster_n() + (C.shares_x ? rank * C.block_n : 0)};
}

/// Loads x and w of one step along K.
template <class Machine, GemmConfig C>
TILEWISE_INLINE void load_operands(const GemmParams& p, GemmStage<C>& stage, Barrier<Machine>& full, TilePlace origin,
                                   int32_t step) {
  constexpr int kXBlocks = C.shares_x ? C.cluster : 1, kWBlocks = C.shares_x ? 1 : C.cluster;
  const int32_t k = step * C.block_k();
  load_share<kXBlocks>(stage.x, p.x_map, full, k, origin.row);
  load_share<kWBlocks>(stage.w, p.w_map, full, C.w_mn_major ? origin.col : k, C.w_mn_major ? k : origin.col);
}

}  // namespace tilewise::device
