// Of each row: dots[part] = dout . out, their mean by weight, delta, and the log-sum-exp of all parts. Merging the dots
// is merging rows of one column, so that more parts than a launch holds go the same way.
#pragma once

#include "device/merge/rows.h"
#include "device/tile/contract.h"

namespace tilewise::device {

template <TileOps Ops, auto C>
class MergeBwdPreprocess {
  using Machine = typename Ops::Machine;

 public:
  using Params = MergeBwdPreprocessParams;
  using Shared = NoShared;

  TILEWISE_INLINE static void run(const Params& p, Shared&) {
    const RowPlace place = row_place<Machine, C>(p.shape);
    const auto dim = static_cast<int32_t>(p.shape.head_dim_v);
    RowLse before{-kInfinity, 0.0f};
    float delta = 0.0f;
    if constexpr (C.resumes) before = RowLse::load<Machine>(p.lse_before, place.index);
    RowTotal total = begin_total<Machine, C>(p, place, before.sum());
    if constexpr (C.resumes) {
      const float weight = total.template add<Machine>(before, true);
      if (before.score != -kInfinity) delta = weight * Machine::load_global(p.delta_before + place.index);
    }
    MergeRow<C> dout;
    load_row<Machine, C, C.out_type>(dout, C.out_type, p.dout.data, row_offset(p.dout, place), place, dim);
    for (int64_t first = 0; first < p.range.num_parts; first += kPartsAtOnce) {
      add_parts(p, place, first, dim, dout, total, delta);
    }
    total.template add_sink<Machine>();
    if (!place.own || !place.first) return;
    total.template lse<Machine>().template store<Machine>(p.lse_accum, place.index);
    Machine::store_global(p.delta + place.index, delta * total.inverse());
  }

 private:
  TILEWISE_INLINE static void add_parts(const Params& p, const RowPlace& place, int64_t first, int32_t dim,
                                        const MergeRow<C>& dout, RowTotal& total, float& delta) {
    const int64_t rows = p.shape.batch_size * p.shape.seqlen_q * p.shape.num_heads_q;
    MergeRow<C> row[kPartsAtOnce];
    float lse[kPartsAtOnce];
    TILEWISE_UNROLL
    for (int j = 0; j < kPartsAtOnce; ++j) {
      const int64_t n = minimum<int64_t>(first + j, p.range.num_parts - 1);
      lse[j] = load_lse<Machine, C>(p.parts, p.range, n, place);
      load_part<Machine, C>(row[j], p.parts, p.range, n, place, dim);
    }
    TILEWISE_UNROLL
    for (int j = 0; j < kPartsAtOnce; ++j) {
      const bool there = first + j < p.range.num_parts, seen = there && lse[j] != -kInfinity;
      float dot = 0.0f;
      TILEWISE_UNROLL
      for (int pass = 0; pass < C.passes; ++pass) {
        TILEWISE_UNROLL
        for (int i = 0; i < kMergeCols; ++i) dot += dout.value[pass][i] * row[j].value[pass][i];
      }
      TILEWISE_UNROLL
      for (int bit = 1; bit < C.lanes_a_row; bit *= 2) dot += Machine::shuffle_xor(dot, bit);
      const float weight = total.template add<Machine>({lse[j], 0.0f}, there);
      delta += seen ? weight * dot : 0.0f;
      if (there && place.own && place.first) {
        Machine::store_global(p.dots + (p.range.first_part + first + j) * rows + place.index, seen ? dot : 0.0f);
      }
    }
  }
};

}  // namespace tilewise::device
