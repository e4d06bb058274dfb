// The forward pass of few queries; see decode_kernel.hpp.
#include "backends/cpu/decode_kernel.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <string>

#include "backends/cpu/flush_denormals.hpp"
#include "backends/cpu/score_functions.hpp"
#include "backends/cpu/tile_maker.hpp"
#include "core/ceil_div.hpp"
#include "core/parallel.hpp"
#include "operations/attention/attention.hpp"

namespace tilewise::backends::cpu {
namespace {

using core::ceil_div;

constexpr std::int64_t kKeysPerSplit = 1024;
constexpr std::int64_t kBlockBytes = 256 << 10;  // of one block of keys and values: two of them fit a core's cache
constexpr std::int64_t kMaxTiles = 16;           // key heads visited together

class DecodeKernel final : public operations::attention::Kernel {
 public:
  DecodeKernel(const Problem& problem, const KernelSet& kernels)
      : element_(element_of(problem.dtype)),
        scores_(problem),
        run_(kernels.decode[element_]),
        scratch_(kernels.decode_scratch[element_](static_cast<std::int32_t>(problem.head_dim),
                                                  static_cast<std::int32_t>(problem.head_dim_v))),
        flops_(forward_flops(problem)),
        heads_per_tile_(std::min(heads_that_share_a_tile(problem),
                                 kernels.decode_max_rows / std::max<std::int64_t>(problem.seqlen_q, 1))),
        num_splits_(std::max<std::int64_t>(1, ceil_div(problem.seqlen_k, kKeysPerSplit))),
        merges_(num_splits_ > 1 || problem.batch_invariant),
        splits_(problem, merges_ ? num_splits_ : 0) {
    const std::int64_t key_bytes =
        (problem.head_dim + problem.head_dim_v) * static_cast<std::int64_t>(element_size(element_));
    key_heads_together_ = std::clamp<std::int64_t>(kBlockBytes / (kernels.decode_keys * key_bytes), 1, kMaxTiles);
  }

  [[nodiscard]] std::size_t workspace_size() const noexcept override { return splits_.workspace_size(); }

  [[nodiscard]] std::string schedule() const override {
    return "decode of " + std::to_string(heads_per_tile_) + " heads a tile, " + std::to_string(num_splits_) +
           (num_splits_ == 1 ? " split" : " splits of " + std::to_string(kKeysPerSplit) + " keys");
  }

  void launch(const device::AttentionParams& p, void* workspace, void*) const override {
    CapturedTables tables;
    const ScoreParams score = scores_.bind(p, tables);
    const int workers = workers_for(flops_);
    const std::int64_t together = key_heads_a_task(p, workers);
    const std::int64_t head_tasks = ceil_div(p.num_heads_k, together);
    core::parallel_for(p.batch_size * num_splits_ * head_tasks, workers, [&](std::int64_t task, int) {
      const FlushDenormals flush;
      const std::int64_t first = task % head_tasks * together, split = task / head_tasks % num_splits_;
      const TileMaker maker(p, score, element_, task / head_tasks / num_splits_);
      run_heads(p, maker, first, std::min(first + together, p.num_heads_k),
                TileSplit{merges_ ? &splits_ : nullptr, workspace, split, num_splits_ > 1 ? kKeysPerSplit : 0},
                workers == 1 && head_tasks == 1);
    });
    if (merges_) splits_.merge(p, score, element_, workspace, workers);
  }

 private:
  /// Heads whose rows of one key are adjacent in memory share a task; results don't depend on it.
  [[nodiscard]] std::int64_t key_heads_a_task(const device::AttentionParams& p, int workers) const {
    const auto adjacent = [&](const device::Tensor4& t, std::int64_t dim) {
      return t.head_stride >= dim && t.head_stride <= 2 * dim && t.head_stride * p.num_heads_k <= t.seq_stride;
    };
    if (!adjacent(p.k, p.head_dim) || !adjacent(p.v, p.head_dim_v)) return 1;
    std::int64_t together = std::min(key_heads_together_, std::max<std::int64_t>(p.num_heads_k, 1));
    while (together > 1 && p.batch_size * num_splits_ * ceil_div(p.num_heads_k, together) < 2 * workers)
      together = ceil_div(together, 2);
    return together;
  }

  /// `in_order`: the keys after this split's are the next that this thread reads.
  void run_heads(const device::AttentionParams& p, const TileMaker& maker, std::int64_t first, std::int64_t last,
                 const TileSplit& split, bool in_order) const {
    const std::int64_t group = p.num_heads_q / p.num_heads_k;
    if (split.index == 0) maker.clear_unused(first * group, (last - first) * group);
    const std::int64_t num_queries = maker.sequence().seqlen_q;
    if (num_queries <= 0) return;
    std::array<RowInfo, kRowCapacity> rows;
    std::array<ForwardTile, kMaxTiles> tiles;
    for (std::int64_t part = 0; part < group; part += heads_per_tile_) {
      RowInfo* next = rows.data();
      for (std::int64_t head_k = first; head_k < last; ++head_k) {
        const TileRows which{head_k, head_k * group + part, std::min(heads_per_tile_, group - part), 0, num_queries};
        tiles[static_cast<std::size_t>(head_k - first)] = maker.tile(which, split, next);
        next += which.num_heads * num_queries;
      }
      share_range(std::span(tiles.data(), static_cast<std::size_t>(last - first)));
      const auto size = static_cast<std::int64_t>(element_size(element_));
      const KeyStream stream{tiles[0].k,
                             tiles[0].v,
                             p.k.seq_stride * size,
                             p.v.seq_stride * size,
                             ((last - first - 1) * p.k.head_stride + p.head_dim) * size,
                             ((last - first - 1) * p.v.head_stride + p.head_dim_v) * size,
                             in_order ? tiles[0].seqlen_k : tiles[0].key_end};
      const auto count = static_cast<std::int32_t>(last - first);
      run_(tiles.data(), count, stream, thread_scratch(scratch_ * static_cast<std::size_t>(count)));
    }
  }

  /// Gives tiles that are read together the keys that any of them sees: functions may leave each others.
  static void share_range(std::span<ForwardTile> tiles) {
    std::int32_t begin = std::numeric_limits<std::int32_t>::max(), end = 0;
    for (const ForwardTile& tile : tiles) {
      if (tile.key_begin >= tile.key_end) continue;
      begin = std::min(begin, tile.key_begin);
      end = std::max(end, tile.key_end);
    }
    for (ForwardTile& tile : tiles) {
      tile.key_begin = std::min(begin, end);
      tile.key_end = end;
    }
  }

  ElementIndex element_;
  ProblemScores scores_;
  DecodeFn run_;
  std::size_t scratch_;
  double flops_;
  std::int64_t heads_per_tile_, num_splits_;
  bool merges_;  // through partial results: always where batch invariance forbids a choice by length
  Splits splits_;
  std::int64_t key_heads_together_ = 1;
};

}  // namespace

bool suits_decode(const Problem& problem, const KernelSet& kernels) {
  // Which kernel a sequence gets must not depend on the longest one of its batch.
  if (problem.batch_invariant && problem.layout == Layout::thd) return false;
  const std::int64_t most = kernels.decode_max_rows, seqlen_q = std::max<std::int64_t>(problem.seqlen_q, 1);
  return seqlen_q * std::min(group_of(problem), most) <= most;
}

std::unique_ptr<core::Kernel> make_decode_kernel(const Problem& problem, const KernelSet& kernels) {
  return std::make_unique<DecodeKernel>(problem, kernels);
}

}  // namespace tilewise::backends::cpu
