// Joins partial results over disjoint keys: out and softmax_lse of what up to kMostParts parts saw, or all of them
// where they are stacked. More take several launches with fp32 between; the sink joins in the last.
#pragma once

#include "device/merge/rows.h"
#include "device/tile/contract.h"

namespace tilewise::device {

template <TileOps Ops, auto C>
class Merge {
  using Machine = typename Ops::Machine;

 public:
  using Params = MergeForwardParams;
  using Shared = NoShared;

  TILEWISE_INLINE static void run(const Params& p, Shared&) {
    const RowPlace place = row_place<Machine, C>(p.shape);
    const auto dim = static_cast<int32_t>(p.shape.head_dim_v);
    RowLse before{-kInfinity, 0.0f};
    if constexpr (C.resumes) before = RowLse::load<Machine>(p.lse_before, place.index);
    RowTotal total = begin_total<Machine, C>(p, place, before.sum());
    MergeRow<C> sum = {};
    if constexpr (C.resumes) {
      MergeRow<C> merged;
      load_row<Machine, C, kPartF32>(merged, kPartF32, p.out_accum, place.index * dim, place, dim);
      add(sum, merged, total.template add<Machine>(before, true), before.score != -kInfinity);
    }
    for (int64_t first = 0; first < p.range.num_parts; first += kPartsAtOnce) {
      add_parts(p, place, first, dim, total, sum);
    }
    total.template add_sink<Machine>();
    const float inverse = total.inverse();
    TILEWISE_UNROLL
    for (int pass = 0; pass < C.passes; ++pass) {
      TILEWISE_UNROLL
      for (int i = 0; i < kMergeCols; ++i) sum.value[pass][i] *= inverse;
    }
    if constexpr (C.pauses) {
      store_row<Machine, C, kPartF32>(sum, kPartF32, p.out_accum, place.index * dim, place, dim);
      if (place.own && place.first) total.template lse<Machine>().template store<Machine>(p.lse_accum, place.index);
    } else {
      store_row<Machine, C, C.out_type>(sum, C.out_type, p.out.data, row_offset(p.out, place), place, dim);
      if (!p.softmax_lse.data || !place.own || !place.first) return;
      Machine::store_global(p.softmax_lse.data + lse_offset(p.softmax_lse, place), total.template lse<Machine>().sum());
    }
  }

 private:
  /// sum += weight * row, of a part that saw something.
  TILEWISE_INLINE static void add(MergeRow<C>& sum, const MergeRow<C>& row, float weight, bool seen) {
    TILEWISE_UNROLL
    for (int pass = 0; pass < C.passes; ++pass) {
      TILEWISE_UNROLL
      for (int i = 0; i < kMergeCols; ++i) sum.value[pass][i] += seen ? weight * row.value[pass][i] : 0.0f;
    }
  }

  TILEWISE_INLINE static void add_parts(const Params& p, const RowPlace& place, int64_t first, int32_t dim,
                                        RowTotal& total, MergeRow<C>& sum) {
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
      const bool there = first + j < p.range.num_parts;
      const float weight = total.template add<Machine>({lse[j], 0.0f}, there);
      add(sum, row[j], weight, there && lse[j] != -kInfinity);
    }
  }
};

}  // namespace tilewise::device
