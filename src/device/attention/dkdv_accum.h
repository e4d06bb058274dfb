// Parts of dk and dv where several blocks share the queries that see a block of keys: fp32 in the workspace, each
// part in a place of its own, so that the kernel that adds them up does so in one order.
#pragma once

#include "device/attention/grid_place.h"
#include "device/tile/lane_sums.h"

namespace tilewise::device {

enum DkdvSide : int { kDk, kDv };

/// Where part `split` of a tile of keys begins.
template <class Float>
TILEWISE_INLINE Float* dkdv_part(Float* accum, int64_t a_block, int64_t tile, int32_t num_splits, int32_t split) {
  return accum + (tile * num_splits + split) * a_block;
}

/// A block's part of dk has C.block_n() x C.head_dim floats, that of dv C.block_n() x C.head_dim_v, each divided among
/// the waves.
template <class Ops, auto C>
struct DkdvAccum {
  static constexpr int kWaveRows = C.waves / C.wave_cols;
  using Part = ColumnPart<C.wave_cols>;
  template <DkdvSide kSide>
  using Sums = Fragment<Ops, C.rows_per_wave, (kSide == kDk ? C.head_dim : C.head_dim_v) / C.wave_cols>;

  TILEWISE_INLINE static int first_row(int wave) { return wave % kWaveRows * C.rows_per_wave; }
  TILEWISE_INLINE static Part part(int wave) { return {wave / kWaveRows}; }

  /// The first float that a lane has of part `split` of `num_splits`.
  template <DkdvSide kSide, class Params>
  TILEWISE_INLINE static auto* of_lane(const Params& p, const GridPlace& place, int32_t num_splits, int32_t split,
                                       int wave, int lane) {
    const int64_t tile =
        (static_cast<int64_t>(place.batch) * p.grid.num_heads + place.head) * p.grid.num_tiles + place.tile;
    const int64_t at = wave * LaneSums<Sums<kSide>>::kFloats + lane * 4;
    if constexpr (kSide == kDk) {
      return dkdv_part(p.dk_accum, p.dk_accum_a_block, tile, num_splits, split) + at;
    } else {
      return dkdv_part(p.dv_accum, p.dv_accum_a_block, tile, num_splits, split) + at;
    }
  }
};

}  // namespace tilewise::device
