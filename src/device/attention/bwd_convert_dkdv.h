// Adds up the parts in dk_accum and dv_accum, and rounds the sums into dk and dv.
#pragma once

#include "device/attention/block_keys.h"
#include "device/attention/config.h"
#include "device/attention/dkdv_accum.h"
#include "device/tile/contract.h"
#include "device/tile/store_rows.h"

namespace tilewise::device {

/// A block has a tile of keys; the grid's splits are dk and dv.
template <TileOps Ops, auto C>
class BwdConvertDkdv {
  using Machine = typename Ops::Machine;
  using Accum = DkdvAccum<Ops, C>;

 public:
  using Params = BwdConvertDkdvParams;
  union Shared {
    SharedTile<C.k_type, C.block_n(), C.head_dim> dk;
    SharedTile<C.v_type, C.block_n(), C.head_dim_v> dv;
  };

  TILEWISE_INLINE static void run(const Params& p, Shared& shared) {
    const GridPlace place = grid_place<Machine>(p.grid);
    const Sequence sequence = sequence_at<C>(p.shape, place.batch);
    if (static_cast<int64_t>(place.tile) * C.block_n() >= sequence.all_k) return;
    const KeyRows keys(sequence, place, C.block_n());
    if (place.split == kDk) {
      if (p.dk.data) convert<kDk>(p, shared.dk, keys, p.dk, p.softmax_scale, p.shape.head_dim);
    } else {
      if (p.dv.data) convert<kDv>(p, shared.dv, keys, p.dv, 1.0f, p.shape.head_dim_v);
    }
  }

 private:
  template <DkdvSide kSide, class Tile>
  TILEWISE_INLINE static void convert(const Params& p, Tile& tile, const KeyRows& keys, const Tensor4& to, float scale,
                                      int64_t cols) {
    using Sums = typename Accum::template Sums<kSide>;
    const int wave = Machine::wave(), lane = Machine::lane();
    const auto num_splits = static_cast<int32_t>(p.num_splits);
    Sums sums;
    sums.clear();
    for (int32_t split = 0; split < num_splits; ++split) {
      LaneSums<Sums>::template add<Machine>(
          sums, Accum::template of_lane<kSide>(p, keys.place, num_splits, split, wave, lane));
    }
    sums.scale_used_rows(lane, scale, [&](int row) { return keys.used(Accum::first_row(wave) + row); });
    write_part_rows<C>(tile, sums, Accum::first_row(wave), Accum::part(wave), cols,
                       [&](int row) { return keys.template address_to_write<Tile::kElement>(to, row); });
  }
};

}  // namespace tilewise::device
