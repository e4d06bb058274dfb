// Merges the partial results of blocks that each saw a part of the keys: out and lse alone decide,
// and the sink joins here, once. A wave takes a row.
#pragma once

#include "device/portable/block_rows.h"

namespace tilewise::device {

template <class Machine, KernelConfig C>
struct MergeSplitsKernel {
  struct Shared {
    float weights[C.waves][kMostSplits];
  };

  TILEWISE_INLINE static void run(const KernelParams& params, Shared& shared) {
    const AttentionParams& p = params.call;
    const GridParams& grid = params.grid;
    const GridPlace place = grid_place<Machine>(one_split(grid));
    const Sequence s = sequence_at<C>(p, place.batch);
    const int64_t i = static_cast<int64_t>(place.tile) * C.waves + Machine::wave();
    if (i >= s.all_q) return;
    const int64_t rows = p.batch_size * p.num_heads_q * p.seqlen_q;
    const int64_t row = (static_cast<int64_t>(place.batch) * p.num_heads_q + place.head) * p.seqlen_q + i;
    const bool used = i < s.seqlen_q;
    float* weights = shared.weights[Machine::wave()];

    const Totals totals = weigh(p, grid, rows, row, place.head, used, weights);
    Machine::wave_sync();
    auto* out = static_cast<uint16_t*>(p.out.data) + row_offset(p.out, s, place.batch, i, place.head);
    const float inverse = totals.sum > 0.0f ? 1.0f / totals.sum : 0.0f;
    for (int32_t col = Machine::lane(); col < p.head_dim_v; col += Machine::kLanes) {
      const float value = used ? sum_of(grid, weights, rows * p.head_dim_v, row * p.head_dim_v + col) : 0.0f;
      Machine::store_global(out + col, static_cast<uint16_t>(Machine::template pack<C.element>(value * inverse, 0.0f)));
    }
    if (Machine::lane() == 0 && p.softmax_lse.data) {
      const bool seen = used && totals.highest != -kInfinity;
      const float lse = seen ? totals.highest + Machine::log2(totals.sum) * kLn2 : -kInfinity;
      Machine::store_global(p.softmax_lse.data + lse_offset(p.softmax_lse, s, place.batch, i, place.head), lse);
    }
  }

 private:
  struct Totals {
    float highest, sum;
  };

  /// Each lane weighs some splits: their loads run side by side.
  TILEWISE_INLINE static Totals weigh(const AttentionParams& p, const GridParams& grid, int64_t rows, int64_t row,
                                      int32_t head, bool used, float* weights) {
    constexpr int kEach = kMostSplits / Machine::kLanes;
    float lse[kEach], highest = -kInfinity;
    TILEWISE_UNROLL
    for (int j = 0; j < kEach; ++j) {
      const int split = Machine::lane() + j * Machine::kLanes;
      const bool there = used && split < grid.num_splits;
      lse[j] = there ? Machine::load_global(grid.partial_lse + split * rows + row) : -kInfinity;
      highest = maximum(highest, lse[j]);
    }
    TILEWISE_UNROLL
    for (int bit = 1; bit < Machine::kLanes; bit *= 2) highest = maximum(highest, Machine::shuffle_xor(highest, bit));
    float sink = -kInfinity;
    if constexpr (C.sink) sink = used ? Machine::load_global(p.sink + head * p.sink_stride) : sink;
    highest = maximum(highest, sink);
    const float base = highest == -kInfinity ? 0.0f : highest;
    float sum = 0.0f;
    TILEWISE_UNROLL
    for (int j = 0; j < kEach; ++j) {
      const float weight = Machine::exp2((lse[j] - base) * kLog2E);
      Machine::store_shared(&weights[Machine::lane() + j * Machine::kLanes], weight);
      sum += weight;
    }
    TILEWISE_UNROLL
    for (int bit = 1; bit < Machine::kLanes; bit *= 2) sum += Machine::shuffle_xor(sum, bit);
    if (sink != -kInfinity) sum += Machine::exp2((sink - base) * kLog2E);
    return {highest, sum};
  }

  /// Weighted sum of one column over the splits, 8 loads under way at a time. A split that saw nothing
  /// has written zeros.
  TILEWISE_INLINE static float sum_of(const GridParams& grid, const float* weights, int64_t values, int64_t place) {
    constexpr int kAtOnce = 8;
    float sum = 0.0f;
    for (int first = 0; first < grid.num_splits; first += kAtOnce) {
      float part[kAtOnce];
      TILEWISE_UNROLL
      for (int j = 0; j < kAtOnce; ++j) {
        const int split = minimum(first + j, grid.num_splits - 1);
        part[j] = Machine::load_global(grid.partial_out + split * values + place);
      }
      TILEWISE_UNROLL
      for (int j = 0; j < kAtOnce; ++j) {
        const float weight = Machine::template load_shared<float>(&weights[minimum(first + j, kMostSplits - 1)]);
        sum += first + j < grid.num_splits ? weight * part[j] : 0.0f;
      }
    }
    return sum;
  }

  /// The grid of this kernel has a block for rows, not for splits.
  TILEWISE_INLINE static GridParams one_split(GridParams grid) {
    grid.num_splits = 1;
    return grid;
  }
};

}  // namespace tilewise::device
