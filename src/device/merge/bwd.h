// The gradients of parts and of their log-sum-exps: weight * dout, and weight * (dot - delta + dlse). Zeros where a
// part saw nothing, whatever dout holds.
#pragma once

#include "device/merge/rows.h"
#include "device/tile/contract.h"

namespace tilewise::device {

template <TileOps Ops, auto C>
class MergeBwd {
  using Machine = typename Ops::Machine;

 public:
  using Params = MergeBwdParams;
  using Shared = NoShared;

  TILEWISE_INLINE static void run(const Params& p, Shared&) {
    const RowPlace place = row_place<Machine, C>(p.shape);
    const auto dim = static_cast<int32_t>(p.shape.head_dim_v);
    const int64_t rows = p.shape.batch_size * p.shape.seqlen_q * p.shape.num_heads_q;
    const RowLse whole = RowLse::load<Machine>(p.lse_accum, place.index);
    const float delta = Machine::load_global(p.delta + place.index);
    const float dlse = p.dlse.data ? Machine::load_global(p.dlse.data + lse_offset(p.dlse, place)) : 0.0f;
    MergeRow<C> dout;
    load_row<Machine, C, C.out_type>(dout, C.out_type, p.dout.data, row_offset(p.dout, place), place, dim);
    for (int64_t n = 0; n < p.range.num_parts; ++n) {
      const MergeBwdPart& part = p.parts[entry_of<C>(n)];
      const float lse = load_lse<Machine, C>(p.parts, p.range, n, place);
      const bool seen = lse != -kInfinity;
      const float weight = seen ? Machine::exp2(((lse - whole.score) - whole.rest) * kLog2E) : 0.0f;
      if (part.dout.data) {
        const int64_t stacked = C.stacked ? n * p.range.drows_stride : 0;
        const MergeRow<C> gradient = scaled(dout, weight, seen);
        store_row<Machine, C, C.part_type>(gradient, part.type, part.dout.data, row_offset(part.dout, place) + stacked,
                                           place, dim);
      }
      if (part.dlse.data && place.own && place.first) {
        const float dot = Machine::load_global(p.dots + (p.range.first_part + n) * rows + place.index);
        const int64_t stacked = C.stacked ? n * p.range.dlse_stride : 0;
        Machine::store_global(part.dlse.data + lse_offset(part.dlse, place) + stacked,
                              seen ? weight * (dot - delta + dlse) : 0.0f);
      }
    }
  }

 private:
  TILEWISE_INLINE static MergeRow<C> scaled(const MergeRow<C>& row, float weight, bool seen) {
    MergeRow<C> result;
    TILEWISE_UNROLL
    for (int pass = 0; pass < C.passes; ++pass) {
      TILEWISE_UNROLL
      for (int i = 0; i < kMergeCols; ++i) result.value[pass][i] = seen ? weight * row.value[pass][i] : 0.0f;
    }
    return result;
  }
};

}  // namespace tilewise::device
