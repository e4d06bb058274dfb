// From dq's sums in the workspace to dq: 16 queries at a time, by a warp.
#pragma once

#include "device/hopper/params.h"
#include "device/tile/element.h"

namespace tilewise::device {

/// A head's queries. Sums of 16 of them lie together, as a warp's accumulators: of 8 columns 64 bytes are a row's and
/// those of the 8th row behind it. So a lane has 8 columns of two rows, 16 bytes of each in dq.
template <class Machine, auto C>
class BwdDqRows {
 public:
  static constexpr int32_t kRows = 16;

  const float* sums;  // [rows, head_dim padded]
  const float* lse2;  // as HopperBwdStatisticsParams have it
  uint16_t* dq;       // of the first query
  int64_t seq_stride;
  int32_t head_dim;
  float softmax_scale;

  /// Of queries [first_row, end), no more than kRows.
  TILEWISE_INLINE void round(int32_t first_row, int32_t end) const {
    const float* const from = sums + static_cast<int64_t>(first_row) * C.head_dim + Machine::lane() * 16;
    const int32_t row = first_row + Machine::lane() % kApart, col = Machine::lane() / kApart * 8;
    FloatRun<4> parts[kSteps][4];
    TILEWISE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      TILEWISE_UNROLL
      for (int i = 0; i < 4; ++i) {
        parts[step][i] =
            Machine::load_global(reinterpret_cast<const FloatRun<4>*>(from + step * kColTiles * 128 + 4 * i));
      }
    }
    // Hidden keys of NaN, times 0, don't reach a row that sees nothing. Statistics have whole tiles of rows.
    const bool sees[2] = {Machine::load_global(lse2 + statistic_place(row)) != kInfinity,
                          Machine::load_global(lse2 + statistic_place(row + kApart)) != kInfinity};
    TILEWISE_UNROLL
    for (int slot = 0; slot < 2; ++slot) {
      const int32_t at = row + slot * kApart;
      if (at >= end) continue;
      TILEWISE_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        const int32_t first_col = step * kColTiles * 8 + col;
        if (!C.exact_dims && first_col >= head_dim) continue;
        Chunk* const to = reinterpret_cast<Chunk*>(dq + at * seq_stride + first_col);
        Machine::store_global(to, sees[slot] ? rounded(parts[step], slot) : Chunk{{0, 0, 0, 0}});
      }
    }
  }

 private:
  static constexpr int32_t kColTiles = 4;  // columns in eights of a step of the warp
  static constexpr int32_t kSteps = C.head_dim / (8 * kColTiles);
  static constexpr int32_t kApart = 8;  // rows between a lane's two

  /// 8 columns of the first or the second row.
  TILEWISE_INLINE Chunk rounded(const FloatRun<4> (&parts)[4], int slot) const {
    Chunk chunk;
    TILEWISE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float* const two = parts[i].value + 2 * slot;
      chunk.word[i] = Machine::template pack<C.q_type>(two[0] * softmax_scale, two[1] * softmax_scale);
    }
    return chunk;
  }
};

}  // namespace tilewise::device
