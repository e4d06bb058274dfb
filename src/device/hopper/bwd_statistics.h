// What the Hopper backward pass begins with: of every query its log-sum-exp and delta, as the computing warpgroups read
// them, and zeros where dq will be summed up. A few lanes share a row.
#pragma once

#include "device/attention/bwd_preprocess.h"
#include "device/hopper/config.h"
#include "device/hopper/params.h"

namespace tilewise::device {

template <TileOps Ops, HopperBwdStatisticsConfig C>
class HopperBwdStatistics {
  using Machine = typename Ops::Machine;
  static constexpr int kLanesARow = lanes_a_delta_row(C, Machine::kLanes), kThreads = C.waves * Machine::kLanes,
                       kRowsAtOnce = kThreads / kLanesARow;
  static_assert(C.kRows % kRowsAtOnce == 0 && kLanesARow * kChunk >= C.head_dim_v);

 public:
  using Params = HopperBwdStatisticsParams;
  using Shared = NoShared;

  TILEWISE_INLINE static void run(const Params& p, Shared&) {
    let_next_step_begin<Machine>();
    if (Machine::block() == 0 && Machine::thread() < p.counters)
      Machine::store_global(p.tile_counter + Machine::thread(), 0u);
    if (p.dkdv_turns) clear_gradient_turns(p);
    const GridPlace place = grid_place<Machine>(p.grid);
    const Sequence s = sequence_at<C>(p.shape, place.batch);
    const int64_t first = static_cast<int64_t>(place.tile) * C.kRows;
    if (first >= s.all_q) return;
    const int64_t head = static_cast<int64_t>(place.batch) * p.shape.num_heads_q + place.head;
    if (p.dq_accum) clear_dq_accum(p, head * p.dq_accum_a_head + first * C.head_dim);
    if (Machine::thread() < p.turns_a_block) {
      Machine::store_global(p.turns + (head * p.grid.num_tiles + place.tile) * p.turns_a_block + Machine::thread(), 0u);
    }
    TILEWISE_UNROLL
    for (int32_t row = 0; row < C.kRows; row += kBatch * kRowsAtOnce) batch(p, s, place, first + row, head);
  }

 private:
  /// Rows whose loads are on their way at once: with four 16,384 tokens of 2,048 take 39 us for 36, with eight 45.
  static constexpr int kBatch = minimum(C.kRows / kRowsAtOnce, 2);

  TILEWISE_INLINE static void batch(const Params& p, const Sequence& s, const GridPlace& place, int64_t first,
                                    int64_t head) {
    const int part = Machine::thread() % kLanesARow, col = part * kChunk;
    const auto cols = static_cast<int>(p.shape.head_dim_v);
    Chunk x[kBatch], y[kBatch];
    TILEWISE_UNROLL
    for (int b = 0; b < kBatch; ++b) {
      const int64_t i = first + b * kRowsAtOnce + Machine::thread() / kLanesARow;
      x[b] = y[b] = Chunk{{0, 0, 0, 0}};
      if (i >= s.seqlen_q) continue;
      const auto* out = elements_of<C.out_type>(p.out) + query_offset(p.out, s, place.batch, i, place.head);
      const auto* dout = elements_of<C.out_type>(p.dout) + query_offset(p.dout, s, place.batch, i, place.head);
      x[b] = load_chunk<Machine, C>(out, col, cols);
      y[b] = load_chunk<Machine, C>(dout, col, cols);
    }
    TILEWISE_UNROLL
    for (int b = 0; b < kBatch; ++b) {
      const int64_t i = first + b * kRowsAtOnce + Machine::thread() / kLanesARow;
      float delta = 0.0f;
      TILEWISE_UNROLL
      for (int e = 0; e < kChunk; ++e) {
        delta += element_to_float<C.out_type>(x[b].element(e)) * element_to_float<C.out_type>(y[b].element(e));
      }
      TILEWISE_UNROLL
      for (int bit = 1; bit < kLanesARow; bit *= 2) delta += Machine::shuffle_xor(delta, bit);
      if (part == 0) store(p, s, place, i, i < s.seqlen_q, delta, head * p.rows_a_head + statistic_place(i));
      if constexpr (C.lengths) {  // of others each query sees a key
        if (p.dq.data && i < s.all_q) clear_unseeing(p, s, place, i, part);
      }
    }
  }

  /// dq of a query that is not used or sees nothing: it may be that no tile of keys adds to its tile.
  TILEWISE_INLINE static void clear_unseeing(const Params& p, const Sequence& s, const GridPlace& place, int64_t i,
                                             int part) {
    const bool sees =
        i < s.seqlen_q && Machine::load_global(p.softmax_lse.data +
                                               lse_offset(p.softmax_lse, s, place.batch, i, place.head)) != -kInfinity;
    if (sees) return;
    auto* const dq = mutable_elements_of<C.out_type>(p.dq) + query_offset(p.dq, s, place.batch, i, place.head);
    for (int col = part * kChunk; col < p.shape.head_dim; col += kLanesARow * kChunk) {
      Machine::store_global(reinterpret_cast<Chunk*>(dq + col), Chunk{{0, 0, 0, 0}});
    }
  }

  /// Queries that are not used or see nothing have weights of 2^-infinity.
  TILEWISE_INLINE static void store(const Params& p, const Sequence& s, const GridPlace& place, int64_t i, bool used,
                                    float delta, int64_t at) {
    float lse2 = kInfinity;
    if (used) {
      const float lse =
          Machine::load_global(p.softmax_lse.data + lse_offset(p.softmax_lse, s, place.batch, i, place.head));
      lse2 = lse == -kInfinity ? kInfinity : lse * kLog2E;
      if (p.dlse.data) delta -= Machine::load_global(p.dlse.data + lse_offset(p.dlse, s, place.batch, i, place.head));
      if (p.dense_delta) {
        Machine::store_global(p.dense_delta + dense_row(p.shape, place.batch, i, place.head), delta);
      }
    }
    Machine::store_global(p.lse2 + at, lse2);
    Machine::store_global(p.delta + at, lse2 == kInfinity ? 0.0f : delta);
  }

  /// By all blocks: of short sequences of many keys there are fewer threads than turns.
  TILEWISE_INLINE static void clear_gradient_turns(const Params& p) {
    const int64_t threads = int64_t{p.grid.num_tiles} * p.shape.num_heads_q * p.shape.batch_size * kThreads;
    for (int64_t i = int64_t{Machine::block()} * kThreads + Machine::thread(); i < p.gradient_turns; i += threads) {
      Machine::store_global(p.dkdv_turns + i, 0u);
    }
  }

  TILEWISE_INLINE static void clear_dq_accum(const Params& p, int64_t from) {
    auto* const chunks = reinterpret_cast<Chunk*>(p.dq_accum + from);
    for (int32_t i = Machine::thread(); i < C.kRows * C.head_dim / 4; i += kThreads) {
      Machine::store_global(chunks + i, Chunk{{0, 0, 0, 0}});
    }
  }
};

}  // namespace tilewise::device
