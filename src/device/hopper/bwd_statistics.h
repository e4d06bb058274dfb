// What the Hopper backward pass begins with: of every query its log-sum-exp and delta, as the computing warpgroups read
// them, and zeros where dq will be summed up. A few lanes share a row.
#pragma once

#include "device/attention/bwd_preprocess.h"
#include "device/hopper/config.h"
#include "device/hopper/params.h"

namespace tilewise::device {

/// Of rows of a head that follow each other, by a warp. Loads of a row's log-sum-exp one after the other, and an
/// address and a branch for each row, had the launch take 36 us for 28 of 16,384 tokens in 16 heads of 128 on an H200.
template <class Machine, HopperBwdStatisticsConfig C>
class BwdRowStatistics {
  static constexpr int kMostAtOnce = 4;  // 2 and 8 take as long

 public:
  using Params = HopperBwdStatisticsParams;
  static constexpr int kLanesARow = lanes_a_delta_row(C, Machine::kLanes), kStride = Machine::kLanes / kLanesARow,
                       kBatch = minimum(16 / kStride, kMostAtOnce), kRows = kBatch * kStride;
  static_assert(kLanesARow * kChunk >= C.head_dim_v && kBatch <= kLanesARow);

  /// All loads are on their way at once, that of a row's log-sum-exp by the lane that will store its statistics. Rows
  /// behind the last query are that one again.
  TILEWISE_INLINE BwdRowStatistics(const Params& p, const Sequence& s, const GridPlace& place, int64_t first, int lane)
      : p_(p), s_(s), place_(place), first_(first + lane / kLanesARow), part_(lane % kLanesARow) {
    if (C.lengths && s.seqlen_q == 0) return;
    const int64_t last = s.seqlen_q - 1;
    const auto rows_behind = static_cast<int32_t>(last - first_);
    const int col = has_columns() ? part_ * kChunk : 0;
    const auto* out = elements_of<C.out_type>(p.out) + query_offset(p.out, s, place.batch, first_, place.head) + col;
    const auto* dout = elements_of<C.out_type>(p.dout) + query_offset(p.dout, s, place.batch, first_, place.head) + col;
    TILEWISE_UNROLL
    for (int b = 0; b < kBatch; ++b) {
      const int64_t i = minimum(b * kStride, rows_behind);
      out_[b] = Machine::load_global(reinterpret_cast<const Chunk*>(out + i * p.out.seq_stride));
      dout_[b] = Machine::load_global(reinterpret_cast<const Chunk*>(dout + i * p.dout.seq_stride));
    }
    const int64_t own = minimum(own_row(), last);
    lse_ = Machine::load_global(p.softmax_lse.data + lse_offset(p.softmax_lse, s, place.batch, own, place.head));
    if (p.dlse.data) dlse_ = Machine::load_global(p.dlse.data + lse_offset(p.dlse, s, place.batch, own, place.head));
  }

  TILEWISE_INLINE void store() {
    float sums[kBatch];
    TILEWISE_UNROLL
    for (int b = 0; b < kBatch; ++b) {
      sums[b] = 0.0f;
      TILEWISE_UNROLL
      for (int e = 0; e < kChunk; ++e) {
        sums[b] += element_to_float<C.out_type>(out_[b].element(e)) * element_to_float<C.out_type>(dout_[b].element(e));
      }
      if (!has_columns()) sums[b] = 0.0f;
      if constexpr (C.lengths) {  // of others each query sees a key
        if (p_.dq.data && row(b) < s_.all_q) clear_unseeing(row(b));
      }
    }
    const float delta = sum_of_own_row(sums);
    if (part_ < kBatch) store_row(own_row(), delta);
  }

 private:
  TILEWISE_INLINE int64_t row(int b) const { return first_ + b * kStride; }
  TILEWISE_INLINE int64_t own_row() const { return row(part_ % kBatch); }
  TILEWISE_INLINE bool has_columns() const {
    return (C.exact_dims && kLanesARow * kChunk == C.head_dim_v) || part_ * kChunk < p_.shape.head_dim_v;
  }

  /// Over the lanes of a row: in each step a lane hands on half of the rows' sums that it has, as many shuffles as
  /// rows.
  TILEWISE_INLINE float sum_of_own_row(float (&sums)[kBatch]) const {
    TILEWISE_UNROLL
    for (int half = kBatch / 2; half >= 1; half /= 2) {
      const bool upper = part_ & half;
      TILEWISE_UNROLL
      for (int b = 0; b < half; ++b) {
        const float kept = upper ? sums[b + half] : sums[b], sent = upper ? sums[b] : sums[b + half];
        sums[b] = kept + Machine::shuffle_xor(sent, half);
      }
    }
    TILEWISE_UNROLL
    for (int bit = kBatch; bit < kLanesARow; bit *= 2) sums[0] += Machine::shuffle_xor(sums[0], bit);
    return sums[0];
  }

  /// dq of a query that is not used or sees nothing: it may be that no tile of keys adds to its tile.
  TILEWISE_INLINE void clear_unseeing(int64_t i) const {
    const bool sees = i < s_.seqlen_q &&
                      Machine::load_global(p_.softmax_lse.data +
                                           lse_offset(p_.softmax_lse, s_, place_.batch, i, place_.head)) != -kInfinity;
    if (sees) return;
    auto* const dq = mutable_elements_of<C.out_type>(p_.dq) + query_offset(p_.dq, s_, place_.batch, i, place_.head);
    for (int col = part_ * kChunk; col < p_.shape.head_dim; col += kLanesARow * kChunk) {
      Machine::store_global(reinterpret_cast<Chunk*>(dq + col), Chunk{{0, 0, 0, 0}});
    }
  }

  /// Queries that are not used or see nothing have weights of 2^-infinity.
  TILEWISE_INLINE void store_row(int64_t i, float delta) const {
    const bool used = i < s_.seqlen_q;
    const float lse2 = used && lse_ != -kInfinity ? lse_ * kLog2E : kInfinity;
    const int64_t head = static_cast<int64_t>(place_.batch) * p_.shape.num_heads_q + place_.head,
                  at = head * p_.rows_a_head + statistic_place(i);
    delta -= dlse_;
    if (p_.dense_delta && used) {
      Machine::store_global(p_.dense_delta + dense_row(p_.shape, place_.batch, i, place_.head), delta);
    }
    Machine::store_global(p_.lse2 + at, lse2);
    Machine::store_global(p_.delta + at, lse2 == kInfinity ? 0.0f : delta);
  }

  const Params& p_;
  const Sequence& s_;
  const GridPlace& place_;
  const int64_t first_;  // of this lane's rows
  const int part_;
  Chunk out_[kBatch]{}, dout_[kBatch]{};
  float lse_ = -kInfinity, dlse_ = 0.0f;  // of row(part_)
};

template <TileOps Ops, HopperBwdStatisticsConfig C>
class HopperBwdStatistics {
  using Machine = typename Ops::Machine;
  using Rows = BwdRowStatistics<Machine, C>;
  static constexpr int kThreads = C.waves * Machine::kLanes, kRowsAWarp = C.kRows / C.waves;
  static_assert(kRowsAWarp % Rows::kRows == 0);

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
    const int64_t of_warp = first + uniform<Machine>(Machine::thread() / Machine::kLanes) * kRowsAWarp;
    TILEWISE_UNROLL
    for (int32_t row = 0; row < kRowsAWarp; row += Rows::kRows) {
      Rows(p, s, place, of_warp + row, Machine::lane()).store();
    }
  }

 private:
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
