// Merges the partial results of blocks that each saw a part of the keys: out and lse alone decide,
// and the sink joins here, once. A wave takes a row.
#pragma once

#include "device/portable/block_rows.h"

namespace tilewise::device {

template <class Machine, KernelConfig C>
struct MergeSplitsKernel {
  TILEWISE_INLINE static void run(const KernelParams& params) {
    const AttentionParams& p = params.call;
    const GridParams& grid = params.grid;
    const GridPlace place = grid_place<Machine>(one_split(grid));
    const Sequence s = sequence_at<C>(p, place.batch);
    const int64_t i = static_cast<int64_t>(place.tile) * C.waves + Machine::wave();
    if (i >= s.all_q) return;
    const int64_t heads = p.batch_size * p.num_heads_q;
    const int64_t row = (static_cast<int64_t>(place.batch) * p.num_heads_q + place.head) * p.seqlen_q + i;
    const bool used = i < s.seqlen_q;

    float highest = -kInfinity;
    for (int split = 0; used && split < grid.num_splits; ++split) {
      highest = maximum(highest, Machine::load_global(grid.partial_lse + split * heads * p.seqlen_q + row));
    }
    const float seen = highest;
    float sum = 0.0f;
    if constexpr (C.sink) {
      const float sink = Machine::load_global(p.sink + place.head * p.sink_stride);
      highest = used ? maximum(highest, sink) : highest;
      if (used && sink != -kInfinity) sum = Machine::exp2((sink - highest) * kLog2E);
    }
    for (int split = 0; seen != -kInfinity && split < grid.num_splits; ++split) {
      sum += Machine::exp2((lse_of(grid, split, heads * p.seqlen_q, row) - highest) * kLog2E);
    }
    const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
    for (int32_t col = Machine::lane(); col < p.head_dim_v; col += Machine::kLanes) {
      float value = 0.0f;
      for (int split = 0; seen != -kInfinity && split < grid.num_splits; ++split) {
        const float lse = lse_of(grid, split, heads * p.seqlen_q, row);
        if (lse == -kInfinity) continue;
        const int64_t from = (split * heads * p.seqlen_q + row) * p.head_dim_v + col;
        value += Machine::exp2((lse - highest) * kLog2E) * Machine::load_global(grid.partial_out + from);
      }
      const int64_t to = row_offset(p.out, s, place.batch, i, place.head) + col;
      Machine::store_global(static_cast<uint16_t*>(p.out.data) + to,
                            static_cast<uint16_t>(Machine::template pack<C.element>(value * inverse, 0.0f)));
    }
    if (Machine::lane() == 0 && p.softmax_lse.data) {
      const float lse = used && highest != -kInfinity ? highest + Machine::log2(sum) * kLn2 : -kInfinity;
      Machine::store_global(p.softmax_lse.data + lse_offset(p.softmax_lse, s, place.batch, i, place.head), lse);
    }
  }

 private:
  /// The grid of this kernel has a block for rows, not for splits.
  TILEWISE_INLINE static GridParams one_split(GridParams grid) {
    grid.num_splits = 1;
    return grid;
  }
  TILEWISE_INLINE static float lse_of(const GridParams& grid, int split, int64_t rows, int64_t row) {
    return Machine::load_global(grid.partial_lse + split * rows + row);
  }
};

}  // namespace tilewise::device
