// Rounds dq_accum into dq.
#pragma once

#include "device/attention/block_queries.h"
#include "device/attention/dq_accum.h"
#include "device/tile/contract.h"
#include "device/tile/store_rows.h"

namespace tilewise::device {

template <TileOps Ops, auto C>
class BwdConvertDq {
  using Machine = typename Ops::Machine;
  using Accum = DqAccum<Ops, C>;
  using Sums = typename Accum::Sums;

 public:
  using Params = BwdConvertDqParams;
  struct Shared {
    SharedTile<C.q_type, C.block_m, C.head_dim> dq;
  };

  TILEWISE_INLINE static void run(const Params& p, Shared& shared) {
    const GridPlace place = grid_place<Machine>(p.grid);
    const Sequence sequence = sequence_at<C>(p.shape, place.batch);
    const BlockQueries<kQueriesOfHead> queries(p.grid, sequence, place, C.block_m);
    if (queries.first_row >= queries.total_rows) return;
    const int wave = Machine::wave(), lane = Machine::lane();
    const float* const from = Accum::of_lane(p, place.batch, place.head, place.tile, wave, lane);
    Sums dQ;
    dQ.clear();
    LaneSums<Sums>::template add<Machine>(dQ, from);
    // Hidden keys of NaN, times 0, don't reach a row that sees nothing.
    dQ.scale_used_rows(lane, p.softmax_scale, [&](int row) {
      return sees_something<Machine>(p.softmax_lse, sequence, place.batch, place.head,
                                     queries.first_row + Accum::first_row(wave) + row);
    });
    write_part_rows<C>(shared.dq, dQ, Accum::first_row(wave), Accum::part(wave), p.shape.head_dim,
                       [&](int row) { return queries.template address_to_write<C.q_type>(p.dq, sequence, row); });
  }
};

}  // namespace tilewise::device
