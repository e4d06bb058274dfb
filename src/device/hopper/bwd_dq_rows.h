// From dq's sums in the workspace to dq: 16 queries at a time, by a warp.
#pragma once

#include "device/attention/tensor_rows.h"
#include "device/hopper/bwd_dq_places.h"
#include "device/hopper/params.h"
#include "device/tile/element.h"
#include "device/tile/fragment.h"

namespace tilewise::device {

/// A head's queries. A lane has 8 columns of two rows, 16 bytes of each in dq.
template <class Machine, auto C>
class BwdDqRows {
 public:
  static constexpr int32_t kRows = kDqRows;

  /// Of a sequence's query head.
  template <class Params>
  TILEWISE_INLINE BwdDqRows(const Params& p, const Sequence& s, int64_t batch, int64_t head, float softmax_scale)
      : sums_(p.dq_accum + (batch * p.shape.num_heads_q + head) * p.dq_accum_a_head),
        lse2_(p.lse2 + (batch * p.shape.num_heads_q + head) * p.rows_a_head),
        dq_(mutable_elements_of<C.q_type>(p.dq) + query_offset(p.dq, s, batch, 0, head)),
        seq_stride_(p.dq.seq_stride),
        head_dim_(static_cast<int32_t>(p.shape.head_dim)),
        softmax_scale_(softmax_scale) {}

  /// Of queries [first_row, end), no more than kRows.
  TILEWISE_INLINE void round(int32_t first_row, int32_t end) const {
    using Places = DqPlaces<C>;
    const float* const from = sums_ + Places::of_rows(first_row) + Machine::lane() * 16;
    const int32_t row = first_row + Machine::lane() % kApart, col = Machine::lane() / kApart * 8;
    FloatRun<4> parts[kSteps][4];
    TILEWISE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      TILEWISE_UNROLL
      for (int i = 0; i < 4; ++i) {
        parts[step][i] =
            Machine::load_global(reinterpret_cast<const FloatRun<4>*>(from + Places::of_columns(step) + 4 * i));
      }
    }
    // Hidden keys of NaN, times 0, don't reach a row that sees nothing. Statistics have whole tiles of rows.
    const bool sees[2] = {Machine::load_global(lse2_ + statistic_place(row)) != kInfinity,
                          Machine::load_global(lse2_ + statistic_place(row + kApart)) != kInfinity};
    TILEWISE_UNROLL
    for (int slot = 0; slot < 2; ++slot) {
      const int32_t at = row + slot * kApart;
      if (at >= end) continue;
      TILEWISE_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        const int32_t first_col = step * Places::kCols + col;
        if (!C.exact_dims && first_col >= head_dim_) continue;
        Chunk* const to = reinterpret_cast<Chunk*>(dq_ + at * seq_stride_ + first_col);
        Machine::store_global(to, sees[slot] ? rounded(parts[step], slot) : Chunk{{0, 0, 0, 0}});
      }
    }
  }

 private:
  static constexpr int32_t kSteps = C.head_dim / DqPlaces<C>::kCols;
  static constexpr int32_t kApart = 8;  // rows between a lane's two

  /// 8 columns of the first or the second row.
  TILEWISE_INLINE Chunk rounded(const FloatRun<4> (&parts)[4], int slot) const {
    Chunk chunk;
    TILEWISE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float* const two = parts[i].value + 2 * slot;
      chunk.word[i] = Machine::template pack<C.q_type>(two[0] * softmax_scale_, two[1] * softmax_scale_);
    }
    return chunk;
  }

  const float* const sums_;  // [rows, head_dim padded]
  const float* const lse2_;  // as HopperBwdPreprocessParams have it
  ElementBits<C.q_type>* const dq_;
  const int64_t seq_stride_;
  const int32_t head_dim_;
  const float softmax_scale_;
};

}  // namespace tilewise::device
