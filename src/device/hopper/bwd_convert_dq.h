// Rounds dq's sums into dq where no block of the backward kernel does.
#pragma once

#include "device/attention/grid_place.h"
#include "device/hopper/bwd_dq_rows.h"
#include "device/tile/contract.h"

namespace tilewise::device {

template <TileOps Ops, HopperBwdConvertDqConfig C>
class HopperBwdConvertDq {
  using Machine = typename Ops::Machine;
  using Rows = BwdDqRows<Machine, C>;
  static_assert(C.waves * Rows::kRows == C.kRows);

 public:
  using Params = HopperBwdConvertDqParams;
  using Shared = NoShared;

  TILEWISE_INLINE static void run(const Params& p, Shared&) {
    const GridPlace place = grid_place<Machine>(p.grid);
    const Sequence s = sequence_at<C>(p.shape, place.batch);
    const int32_t first = place.tile * C.kRows + Machine::wave() * Rows::kRows;
    const auto end = static_cast<int32_t>(s.all_q);
    if (first >= end) return;
    Rows(p, s, place.batch, place.head, p.softmax_scale).round(first, end);
  }
};

}  // namespace tilewise::device
