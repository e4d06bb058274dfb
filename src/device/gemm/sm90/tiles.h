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

/// This block's part of a cluster's tile: where it begins in out, where its expert's rows end.
struct GemmTile {
  int32_t row, col, end, expert;
};

/// The tiles that a block works on, one after another.
template <class Machine, GemmConfig C>
class GemmTiles {
 public:
  TILEWISE_INLINE explicit GemmTiles(const GemmParams& p)
      : p_(p),
        numbers_(C.grouped ? kMostTiles : p.grid.count()),
        groups_(C.grouped ? p.offsets : nullptr, p.num_experts, C.cluster_m(), p.grid.cols) {
    if constexpr (C.grouped) place_ = groups_.place(numbers_.number());
  }

  TILEWISE_INLINE bool has_tile() const { return C.grouped ? place_.group < p_.num_experts : numbers_.has_tile(); }
  TILEWISE_INLINE void advance() {
    numbers_.advance();
    if constexpr (C.grouped) place_ = groups_.place(numbers_.number());
  }
  TILEWISE_INLINE GemmTile tile() const {
    if constexpr (C.grouped) {
      return own_part({place_.row, place_.col * C.cluster_n(), place_.end, place_.group});
    } else {
      const TilePlace place = p_.grid.place(numbers_.number());
      return own_part({place.row * C.cluster_m(), place.col * C.cluster_n(), p_.m, 0});
    }
  }

 private:
  static constexpr int32_t kMostTiles = 0x7FFFFFFF;  // how many there are only the groups know
  struct NoGroups {
    TILEWISE_INLINE NoGroups(const int32_t*, int32_t, int32_t, int32_t) {}
  };
  TILEWISE_INLINE static GemmTile own_part(GemmTile tile) {
    const int32_t rank = C.cluster > 1 ? Machine::rank_in_cluster() : 0;
    (C.shares_x ? tile.col : tile.row) += rank * (C.shares_x ? C.block_n : C.block_m);
    return tile;
  }

  const GemmParams& p_;
  StaticScheduler<Machine, C.cluster> numbers_;
  Choose<C.grouped != 0, GroupedTiles<Machine>, NoGroups> groups_;
  typename GroupedTiles<Machine>::Place place_{};
};

/// Loads x and w of one step along K.
template <class Machine, GemmConfig C>
TILEWISE_INLINE void load_operands(const GemmParams& p, GemmStage<C>& stage, Barrier<Machine>& full,
                                   const GemmTile& tile, int32_t step) {
  constexpr int kXBlocks = C.shares_x ? C.cluster : 1, kWBlocks = C.shares_x ? 1 : C.cluster;
  const int32_t k = step * C.block_k();
  load_share<kXBlocks>(stage.x, p.x_map, full, k, tile.row);
  load_share<kWBlocks>(stage.w, p.w_map, full, C.w_mn_major ? tile.col : k, C.w_mn_major ? k : tile.col, tile.expert);
}

}  // namespace tilewise::device
