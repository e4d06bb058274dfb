// Where the products that make up dq are added up, fp32 in the workspace.
#pragma once

#include "device/attention/config.h"
#include "device/attention/params.h"
#include "device/tile/lane_sums.h"

namespace tilewise::device {

/// A tile of queries has C.block_m x C.head_dim floats, divided among C.waves waves.
template <class Ops, auto C>
struct DqAccum {
  static constexpr int kRows = dq_accum_rows(C), kWaveRows = C.block_m / kRows, kParts = C.waves / kWaveRows;
  static_assert(C.waves % kWaveRows == 0 && C.head_dim % (16 * kParts) == 0, "waves have equal shares");
  using Sums = Fragment<Ops, kRows, C.head_dim / kParts>;
  using Part = ColumnPart<kParts>;

  TILEWISE_INLINE static int first_row(int wave) { return wave % kWaveRows * kRows; }
  TILEWISE_INLINE static Part part(int wave) { return {wave / kWaveRows}; }

  /// The first float that a lane has of a tile.
  template <class Params>
  TILEWISE_INLINE static auto* of_lane(const Params& p, int64_t batch, int64_t head, int64_t tile, int wave, int lane) {
    return p.dq_accum + (batch * p.shape.num_heads_q + head) * p.dq_accum_a_head + tile * (C.block_m * C.head_dim) +
           wave * LaneSums<Sums>::kFloats + lane * 4;
  }
};

}  // namespace tilewise::device
