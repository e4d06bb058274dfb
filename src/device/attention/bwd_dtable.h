// The gradient of a captured tensor by one of score_mod's look-ups: a block owns queries of a head, streams keys past
// them and adds what each score gives to the element that it looks up, in any order. The problem's functions have that
// look-up's derivative for a slope, and its indices: see portable/attention/functions.hpp.
#pragma once

#include "device/attention/block_queries.h"
#include "device/attention/bwd_patch.h"
#include "device/attention/config.h"
#include "device/attention/grid_place.h"
#include "device/attention/score_functions.h"
#include "device/tile/contract.h"

namespace tilewise::device {

template <TileOps Ops, auto C>
class BwdDtable {
  using Machine = typename Ops::Machine;
  using Functions = FunctionsOf<C>;

 public:
  using Params = typename Functions::template ParamsOf<BwdDtableParams>;
  struct Shared {
    BwdPatchTiles<Ops, C> tiles;
  };

  TILEWISE_INLINE static void run(const Params& p, Shared& shared) {
    using Patch = BwdPatch<Ops, C, Params>;
    using Scores = typename Patch::Scores;
    const GridPlace place = grid_place<Machine>(p.grid);
    const Sequence s = sequence_at<C>(p.shape, place.batch);
    const int32_t first_row = place.tile * C.block_m(), rows = static_cast<int32_t>(s.seqlen_q);
    if (first_row >= rows || s.seqlen_k == 0) return;
    const TileRange keys = key_tiles<C>(p.score, s, first_row, minimum(first_row + C.block_m(), rows) - 1);
    const Patch patch(p, shared.tiles);
    float sum = 0.0f;  // of the lane, where all scores look up the same element
    TILEWISE_NO_UNROLL
    for (int32_t tile = keys.begin; tile < keys.end; ++tile) {
      Scores parts;
      patch.gradients(parts, s, place.batch, place.head, first_row, tile * C.block_n);
      parts.for_each(Machine::not_hoisted(patch.lane()), [&](int slot, int col, auto&& x) {
        const float part = x;
        if constexpr (Functions::kOneElement) {
          sum += part;
        } else if (part != 0.0f) {  // nothing is seen where it is 0
          const int32_t query = first_row + patch.wave_row() + Scores::row_of_slot(patch.lane(), slot);
          add(p, place.batch, place.head, query, tile * C.block_n + col, part);
        }
      });
    }
    if constexpr (Functions::kOneElement) {
      TILEWISE_UNROLL
      for (int other = 1; other < Machine::kLanes; other *= 2) sum += Machine::shuffle_xor(sum, other);
      if (patch.lane() == 0) add(p, place.batch, place.head, first_row, 0, sum);
    }
  }

 private:
  TILEWISE_INLINE static void add(const Params& p, int32_t batch, int32_t head, int32_t query, int32_t key,
                                  float part) {
    const ScoreTable& table = p.tables[Functions::kTable];
    bool inside = true;
    int64_t element = 0;
    const auto index_by = [&](int dimension, auto index) {
      const auto place = static_cast<int64_t>(index);
      inside = inside & (place >= 0) & (place < table.sizes[dimension]);
      element = element * table.sizes[dimension] + place;
    };
    index_by(0, Functions::template index0<Machine>(p.tables, batch, head, query, key));
    if constexpr (Functions::kRank > 1)
      index_by(1, Functions::template index1<Machine>(p.tables, batch, head, query, key));
    if constexpr (Functions::kRank > 2)
      index_by(2, Functions::template index2<Machine>(p.tables, batch, head, query, key));
    if constexpr (Functions::kRank > 3)
      index_by(3, Functions::template index3<Machine>(p.tables, batch, head, query, key));
    if (inside) Machine::add_global(p.sums + element, part);
  }
};

}  // namespace tilewise::device
