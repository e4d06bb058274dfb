// What the backward pass begins with: delta = rowsum(out * dout) - dlse of every used query, of which a few
// lanes share a row, and zeros where dq will be summed up; and dsink, which follows from delta.
#pragma once

#include "device/portable/sink.h"

namespace tilewise::device {

/// This lane's part of a . b.
template <class Machine, KernelConfig C>
TILEWISE_INLINE float partial_dot(const uint16_t* a, const uint16_t* b, int first_col, int step, int32_t cols) {
  float sum = 0.0f;
  for (int32_t col = first_col; col < cols; col += step) {
    const Chunk x = load_chunk<Machine, C>(a, col, cols), y = load_chunk<Machine, C>(b, col, cols);
    TILEWISE_UNROLL
    for (int i = 0; i < kChunk; ++i) {
      const int shift = 16 * (i % 2);
      sum +=
          element_to_float<C>(x.word[i / 2] >> shift & 0xFFFFu) * element_to_float<C>(y.word[i / 2] >> shift & 0xFFFFu);
    }
  }
  return sum;
}

template <class Machine, KernelConfig C>
class RowDeltaKernel {
  static constexpr int kLanesARow = lanes_a_delta_row(C, Machine::kLanes),
                       kBlockRows = C.waves * Machine::kLanes / kLanesARow;

 public:
  TILEWISE_INLINE static void run(const KernelParams& params) {
    const AttentionParams& p = params.call;
    const GridPlace place = grid_place<Machine>(params.grid);
    if (params.grid.query_sums) clear_query_sums(params, place);
    const Sequence s = sequence_at<C>(p, place.batch);
    const int part = Machine::thread() % kLanesARow;
    const int64_t row = static_cast<int64_t>(place.tile) * kBlockRows + Machine::thread() / kLanesARow;
    const int64_t i = minimum<int64_t>(row, s.seqlen_q - 1);  // shuffles need every lane
    if (s.seqlen_q == 0) return;
    const auto* out = static_cast<const uint16_t*>(p.out.data) + row_offset(p.out, s, place.batch, i, place.head);
    const auto* dout = static_cast<const uint16_t*>(p.dout.data) + row_offset(p.dout, s, place.batch, i, place.head);
    float delta =
        partial_dot<Machine, C>(out, dout, part * kChunk, kLanesARow * kChunk, static_cast<int32_t>(p.head_dim_v));
    TILEWISE_UNROLL
    for (int bit = 1; bit < kLanesARow; bit *= 2) delta += Machine::shuffle_xor(delta, bit);
    if (part != 0 || row >= s.seqlen_q) return;
    if (p.dlse.data) delta -= Machine::load_global(p.dlse.data + lse_offset(p.dlse, s, place.batch, i, place.head));
    const int64_t to = (static_cast<int64_t>(place.batch) * p.num_heads_q + place.head) * p.seqlen_q + i;
    Machine::store_global(params.grid.delta + to, delta);
  }

 private:
  /// Each block of a head clears its share of what the head's dq is summed up in.
  TILEWISE_INLINE static void clear_query_sums(const KernelParams& params, const GridPlace& place) {
    const GridParams& grid = params.grid;
    const int64_t head = static_cast<int64_t>(place.batch) * params.call.num_heads_q + place.head;
    auto* const chunks = reinterpret_cast<Chunk*>(grid.query_sums + head * grid.query_sums_a_head);
    const int64_t all = grid.query_sums_a_head / 4, share = ceil_div<int64_t>(all, grid.num_tiles);
    const int64_t end = minimum<int64_t>(all, (place.tile + 1) * share);
    for (int64_t i = place.tile * share + Machine::thread(); i < end; i += C.waves * Machine::kLanes) {
      Machine::store_global(chunks + i, Chunk{{0, 0, 0, 0}});
    }
  }
};

/// dsink = -sum over rows of exp(sink - lse) * delta; one block a head, in a fixed order.
template <class Machine, KernelConfig C>
struct SinkGradientKernel {
  static constexpr int kThreads = C.waves * Machine::kLanes;
  struct Shared {
    float part[kThreads];
  };

  TILEWISE_INLINE static void run(const KernelParams& params, Shared& shared) {
    const AttentionParams& p = params.call;
    const int64_t head = Machine::block();
    const float sink = load_sink<Machine, C>(p, head);
    float sum = 0.0f;
    for (int64_t b = 0; b < p.batch_size; ++b) {
      const Sequence s = sequence_at<C>(p, b);
      for (int64_t i = Machine::thread(); i < s.seqlen_q; i += kThreads) {
        const float lse = Machine::load_global(p.softmax_lse.data + lse_offset(p.softmax_lse, s, b, i, head));
        const float delta = Machine::load_global(params.grid.delta + (b * p.num_heads_q + head) * p.seqlen_q + i);
        if (lse != -kInfinity) sum -= Machine::exp2((sink - lse) * kLog2E) * delta;
      }
    }
    Machine::store_shared(&shared.part[Machine::thread()], sum);
    Machine::barrier();
    for (int half = kThreads / 2; half > 0; half /= 2) {
      const int thread = Machine::thread();
      if (thread < half) {
        Machine::store_shared(&shared.part[thread],
                              Machine::template load_shared<float>(&shared.part[thread]) +
                                  Machine::template load_shared<float>(&shared.part[thread + half]));
      }
      Machine::barrier();
    }
    if (Machine::thread() == 0) {
      store_dsink<Machine, C>(p, head, Machine::template load_shared<float>(&shared.part[0]));
    }
  }
};

}  // namespace tilewise::device
