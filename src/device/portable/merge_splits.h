// Merges the partial results of blocks that each saw a part of the keys: out and lse alone decide,
// and the sink joins here, once. A block takes a row, each of its waves a part of the splits: what a
// lane reads is under way at once, since a call of few rows waits for memory and nothing else.
#pragma once

#include "device/portable/block_rows.h"

namespace tilewise::device {

template <class Machine, KernelConfig C>
class MergeSplitsKernel {
  static constexpr int kThreads = C.waves * Machine::kLanes;
  static constexpr int kLaneCols = 4, kCols = kLaneCols * Machine::kLanes;  // of a pass

 public:
  struct Shared {
    float weights[kMostSplits];
    float parts[C.waves][kCols];
  };

  TILEWISE_INLINE static void run(const KernelParams& params, Shared& shared) {
    const AttentionParams& p = params.call;
    const GridParams& grid = params.grid;
    const GridPlace place = grid_place<Machine>(one_split(grid));
    const Sequence s = sequence_at<C>(p, place.batch);
    const int64_t i = place.tile;
    if (i >= s.all_q) return;
    const int64_t rows = p.batch_size * p.num_heads_q * p.seqlen_q;
    const int64_t row = (static_cast<int64_t>(place.batch) * p.num_heads_q + place.head) * p.seqlen_q + i;
    const bool used = i < s.seqlen_q;

    const Totals totals = weigh(p, grid, rows, row, place.head, used, shared.weights);
    Machine::barrier();
    auto* out = static_cast<uint16_t*>(p.out.data) + row_offset(p.out, s, place.batch, i, place.head);
    const float inverse = totals.sum > 0.0f ? 1.0f / totals.sum : 0.0f;
    for (int32_t first_col = 0; first_col < p.head_dim_v; first_col += kCols) {
      add_splits(shared, grid, used, rows * p.head_dim_v, row * p.head_dim_v + first_col,
                 static_cast<int32_t>(p.head_dim_v) - first_col);
      Machine::barrier();
      for (int col = Machine::thread(); col < minimum<int64_t>(kCols, p.head_dim_v - first_col); col += kThreads) {
        float sum = 0.0f;
        TILEWISE_UNROLL
        for (int wave = 0; wave < C.waves; ++wave) {
          sum += Machine::template load_shared<float>(&shared.parts[wave][col]);
        }
        const auto element = static_cast<uint16_t>(Machine::template pack<C.element>(sum * inverse, 0.0f));
        Machine::store_global(out + first_col + col, element);
      }
      Machine::barrier();  // the parts were read by all
    }
    if (Machine::thread() == 0 && p.softmax_lse.data) {
      const bool seen = used && totals.highest != -kInfinity;
      const float lse = seen ? totals.highest + Machine::log2(totals.sum) * kLn2 : -kInfinity;
      Machine::store_global(p.softmax_lse.data + lse_offset(p.softmax_lse, s, place.batch, i, place.head), lse);
    }
  }

 private:
  struct Totals {
    float highest, sum;
  };

  /// Each lane weighs some splits: their loads run side by side. Every wave does, and has the totals.
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
      if (Machine::wave() == 0) Machine::store_shared(&weights[Machine::lane() + j * Machine::kLanes], weight);
      sum += weight;
    }
    TILEWISE_UNROLL
    for (int bit = 1; bit < Machine::kLanes; bit *= 2) sum += Machine::shuffle_xor(sum, bit);
    if (sink != -kInfinity) sum += Machine::exp2((sink - base) * kLog2E);
    return {highest, sum};
  }

  /// This wave's part of the weighted sums of `cols` columns. A split that saw nothing has written zeros.
  TILEWISE_INLINE static void add_splits(Shared& shared, const GridParams& grid, bool used, int64_t values,
                                         int64_t place, int32_t cols) {
    constexpr int kAtOnce = 8;
    const int lane = Machine::lane(), wave = Machine::wave();
    float sums[kLaneCols] = {};
    for (int first = wave; used && first < grid.num_splits; first += kAtOnce * C.waves) {
      float part[kAtOnce][kLaneCols];
      TILEWISE_UNROLL
      for (int j = 0; j < kAtOnce; ++j) {
        const int split = minimum(first + j * C.waves, grid.num_splits - 1);
        TILEWISE_UNROLL
        for (int c = 0; c < kLaneCols; ++c) {
          const int col = minimum(lane + c * Machine::kLanes, cols - 1);
          part[j][c] = Machine::load_global(grid.partial_out + split * values + place + col);
        }
      }
      TILEWISE_UNROLL
      for (int j = 0; j < kAtOnce; ++j) {
        const int split = first + j * C.waves;
        const float weight = Machine::template load_shared<float>(&shared.weights[minimum(split, kMostSplits - 1)]);
        TILEWISE_UNROLL
        for (int c = 0; c < kLaneCols; ++c) sums[c] += split < grid.num_splits ? weight * part[j][c] : 0.0f;
      }
    }
    TILEWISE_UNROLL
    for (int c = 0; c < kLaneCols; ++c) {
      Machine::store_shared(&shared.parts[wave][lane + c * Machine::kLanes], sums[c]);
    }
  }

  /// The grid of this kernel has a block for rows, not for splits.
  TILEWISE_INLINE static GridParams one_split(GridParams grid) {
    grid.num_splits = 1;
    return grid;
  }
};

}  // namespace tilewise::device
