// What the backward pass begins with: delta = rowsum(out * dout) - dlse of every used query, of which a few
// lanes share a row, and zeros where dq will be summed up.
#pragma once

#include "device/attention/config.h"
#include "device/attention/grid_place.h"
#include "device/attention/tensor_rows.h"
#include "device/tile/contract.h"

namespace tilewise::device {

/// This lane's part of a . b.
template <class Machine, auto C, int kElement>
TILEWISE_INLINE float partial_dot(const ElementBits<kElement>* a, const ElementBits<kElement>* b, int first_col,
                                  int step, int32_t cols) {
  float sum = 0.0f;
  for (int32_t col = first_col; col < cols; col += step) {
    const Chunk x = load_chunk<Machine, C>(a, col, cols), y = load_chunk<Machine, C>(b, col, cols);
    TILEWISE_UNROLL
    for (int i = 0; i < kChunk; ++i) {
      sum += element_to_float<kElement>(x.element(i)) * element_to_float<kElement>(y.element(i));
    }
  }
  return sum;
}

template <TileOps Ops, auto C>
class BwdPreprocess {
  using Machine = typename Ops::Machine;
  static constexpr int kLanesARow = lanes_a_delta_row(C, Machine::kLanes),
                       kRows = C.waves * Machine::kLanes / kLanesARow;

 public:
  using Params = BwdPreprocessParams;
  using Shared = NoShared;

  TILEWISE_INLINE static void run(const Params& p, Shared&) {
    const GridPlace place = grid_place<Machine>(p.grid);
    if (p.dq_accum) clear_dq_accum(p, place);
    const Sequence s = sequence_at<C>(p.shape, place.batch);
    const int part = Machine::thread() % kLanesARow;
    const int64_t row = static_cast<int64_t>(place.tile) * kRows + Machine::thread() / kLanesARow;
    const int64_t i = minimum<int64_t>(row, s.seqlen_q - 1);  // shuffles need every lane
    if (s.seqlen_q == 0) return;
    const auto* out = elements_of<C.out_type>(p.out) + query_offset(p.out, s, place.batch, i, place.head);
    const auto* dout = elements_of<C.out_type>(p.dout) + query_offset(p.dout, s, place.batch, i, place.head);
    float delta = partial_dot<Machine, C, C.out_type>(out, dout, part * kChunk, kLanesARow * kChunk,
                                                      static_cast<int32_t>(p.shape.head_dim_v));
    TILEWISE_UNROLL
    for (int bit = 1; bit < kLanesARow; bit *= 2) delta += Machine::shuffle_xor(delta, bit);
    if (part != 0 || row >= s.seqlen_q) return;
    if (p.dlse.data) delta -= Machine::load_global(p.dlse.data + lse_offset(p.dlse, s, place.batch, i, place.head));
    Machine::store_global(p.delta + dense_row(p.shape, place.batch, i, place.head), delta);
  }

 private:
  /// Each block of a head clears its share of the head's dq_accum.
  TILEWISE_INLINE static void clear_dq_accum(const Params& p, const GridPlace& place) {
    const int64_t head = static_cast<int64_t>(place.batch) * p.shape.num_heads_q + place.head;
    auto* const chunks = reinterpret_cast<Chunk*>(p.dq_accum + head * p.dq_accum_a_head);
    const int64_t all = p.dq_accum_a_head / 4, share = ceil_div<int64_t>(all, p.grid.num_tiles);
    const int64_t end = minimum<int64_t>(all, (place.tile + 1) * share);
    for (int64_t i = place.tile * share + Machine::thread(); i < end; i += C.waves * Machine::kLanes) {
      Machine::store_global(chunks + i, Chunk{{0, 0, 0, 0}});
    }
  }
};

}  // namespace tilewise::device
