// The forward pass on the CPU; see forward_kernel.hpp.
#include "backends/cpu/forward_kernel.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "backends/cpu/merge_splits.hpp"
#include "backends/cpu/rows.hpp"
#include "core/parallel.hpp"

namespace tilewise::backends::cpu {
namespace {

constexpr std::int64_t kKeysPerSplit = 1024;
constexpr std::int64_t kFewestQueries = 24;  // packing a key block for fewer costs more than it saves
constexpr std::int64_t kRowCapacity = 256;   // no KernelSet takes more rows a tile

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

class ForwardKernel final : public core::Kernel {
 public:
  ForwardKernel(const Problem& problem, const KernelSet& kernels)
      : kernels_(kernels),
        schedule_(schedule_forward(problem, kernels)),
        element_(element_of(problem.dtype)),
        run_(schedule_.decode ? kernels.decode[element_] : kernels.forward[element_]),
        scratch_((schedule_.decode ? kernels.decode_scratch : kernels.forward_scratch)[element_](
            static_cast<std::int32_t>(problem.head_dim), static_cast<std::int32_t>(problem.head_dim_v))),
        splits_(problem, schedule_.merges ? schedule_.max_splits : 0) {
    const double visible = static_cast<double>(problem.batch_size * problem.num_heads_q) *
                           static_cast<double>(problem.seqlen_q) * static_cast<double>(problem.seqlen_k);
    flops_ = 2.0 * visible * static_cast<double>(problem.head_dim + problem.head_dim_v);
  }

  [[nodiscard]] std::size_t workspace_size() const noexcept override { return splits_.workspace_size(); }

  [[nodiscard]] std::string schedule() const override {
    std::string text = schedule_.decode ? "decode" : "tile";
    text += " of " + std::to_string(schedule_.heads_per_tile) + " heads x " +
            std::to_string(schedule_.queries_per_tile) + " queries";
    if (schedule_.max_splits > 1) text += ", splits of " + std::to_string(schedule_.keys_per_split) + " keys";
    return text;
  }

  void launch(const device::AttentionParams& p, void* workspace, void*) const override {
    const std::int64_t group = p.num_heads_q / std::max<std::int64_t>(p.num_heads_k, 1);
    const std::int64_t head_tiles = p.num_heads_k * ceil_div(group, schedule_.heads_per_tile);
    const std::int64_t heads = p.batch_size * head_tiles;
    const ScoreParams score = make_score_params(p);
    const int workers = workers_for(flops_);
    const std::int64_t queries = queries_a_task(heads, p.seqlen_q, workers);
    const std::int64_t query_tiles = std::max<std::int64_t>(1, ceil_div(p.seqlen_q, queries));
    // Later query tiles see more keys under a causal mask: they start first.
    core::parallel_for(query_tiles * heads * schedule_.max_splits, workers, [&](std::int64_t task, int) {
      const std::int64_t split = task % schedule_.max_splits;
      const std::int64_t head = task / schedule_.max_splits % heads;
      const std::int64_t query = query_tiles - 1 - task / schedule_.max_splits / heads;
      run_tile(p, score, workspace, Tile{head / head_tiles, head % head_tiles, query * queries, queries, split});
    });
    if (schedule_.merges) splits_.merge(p, score, element_, workspace, workers);
  }

 private:
  struct Tile {
    std::int64_t batch, head_tile, first_query, num_queries, split;
  };

  /// Smaller tiles than the schedule's where they would leave workers idle. A row's result does
  /// not depend on its tile: blocks of keys start at fixed places.
  [[nodiscard]] std::int64_t queries_a_task(std::int64_t heads, std::int64_t seqlen_q, int workers) const {
    std::int64_t queries = schedule_.queries_per_tile;
    while (!schedule_.decode && queries >= 2 * kFewestQueries && heads * ceil_div(seqlen_q, queries) < 2 * workers)
      queries = ceil_div(queries, 2);
    return queries;
  }

  void run_tile(const device::AttentionParams& p, const ScoreParams& score, void* workspace, const Tile& at) const {
    const std::int64_t group = p.num_heads_q / p.num_heads_k;
    const std::int64_t tiles_a_key_head = ceil_div(group, schedule_.heads_per_tile);
    const std::int64_t head_k = at.head_tile / tiles_a_key_head;
    const std::int64_t first_head = head_k * group + at.head_tile % tiles_a_key_head * schedule_.heads_per_tile;
    const std::int64_t num_heads = std::min(schedule_.heads_per_tile, (head_k + 1) * group - first_head);
    const device::Sequence s = device::sequence_of(p, at.batch);
    if (at.first_query == 0 && at.split == 0) clear_unused(p, s, at.batch, first_head, num_heads);
    const std::int64_t first_query = at.first_query;
    const std::int64_t num_queries = std::min(at.num_queries, s.seqlen_q - first_query);
    if (num_queries <= 0) return;

    std::array<RowInfo, kRowCapacity> rows;
    ForwardTile tile{};
    tile.rows = rows.data();
    tile.num_rows = static_cast<std::int32_t>(num_heads * num_queries);
    tile.score = score;
    tile.head_dim = static_cast<std::int32_t>(p.head_dim);
    tile.head_dim_v = static_cast<std::int32_t>(p.head_dim_v);
    tile.seqlen_k = static_cast<std::int32_t>(s.seqlen_k);
    tile.k = row_address(p.k, at.batch, s.k_row, head_k, element_size(element_));
    tile.v = row_address(p.v, at.batch, s.k_row, head_k, element_size(element_));
    tile.k_stride = p.k.seq_stride;
    tile.v_stride = p.v.seq_stride;
    tile.key_begin = std::numeric_limits<std::int32_t>::max();
    const RowMaker maker(p, at.batch, s);
    for (std::int64_t h = 0; h < num_heads; ++h) {
      for (std::int64_t i = 0; i < num_queries; ++i) {
        RowInfo& row = rows[static_cast<std::size_t>(h * num_queries + i)];
        row = maker.row(first_query + i, first_head + h, element_size(element_));
        row.out =
            mutable_row_address(p.out, at.batch, s.q_row + first_query + i, first_head + h, element_size(element_));
        row.lse = lse_address(p.softmax_lse, s, at.batch, first_query + i, first_head + h);
        if (schedule_.merges) row.partial = splits_.row(workspace, at.batch, first_head + h, first_query + i, at.split);
        if (row.key_begin >= row.key_end) continue;
        tile.key_begin = std::min(tile.key_begin, row.key_begin);
        tile.key_end = std::max(tile.key_end, row.key_end);
      }
    }
    if (schedule_.max_splits > 1) {
      const std::int64_t begin = at.split * schedule_.keys_per_split;
      tile.key_begin = static_cast<std::int32_t>(std::max<std::int64_t>(tile.key_begin, begin));
      tile.key_end = static_cast<std::int32_t>(std::min<std::int64_t>(tile.key_end, begin + schedule_.keys_per_split));
    }
    if (tile.key_begin > tile.key_end) tile.key_begin = tile.key_end = 0;
    run_(tile, thread_scratch(scratch_));
  }

  /// Rows of the sequence outside its used part: out 0, lse -infinity.
  void clear_unused(const device::AttentionParams& p, const device::Sequence& s, std::int64_t batch,
                    std::int64_t first_head, std::int64_t num_heads) const {
    for (std::int64_t h = first_head; h < first_head + num_heads; ++h) {
      for (std::int64_t i = s.seqlen_q; i < s.all_q; ++i) {
        void* out = mutable_row_address(p.out, batch, s.q_row + i, h, element_size(element_));
        std::memset(out, 0, static_cast<std::size_t>(p.head_dim_v) * element_size(element_));
        if (float* lse = lse_address(p.softmax_lse, s, batch, i, h)) *lse = -std::numeric_limits<float>::infinity();
      }
    }
  }

  const KernelSet& kernels_;
  ForwardSchedule schedule_;
  ElementIndex element_;
  ForwardFn run_;
  std::size_t scratch_;
  Splits splits_;
  double flops_ = 0.0;
};

}  // namespace

ForwardSchedule schedule_forward(const Problem& problem, const KernelSet& kernels) {
  ForwardSchedule schedule;
  const std::int64_t seqlen_q = std::max<std::int64_t>(problem.seqlen_q, 1);
  const std::int64_t group =
      std::max<std::int64_t>(problem.num_heads_q / std::max<std::int64_t>(problem.num_heads_k, 1), 1);
  const std::int64_t most_rows = std::min<std::int64_t>(kernels.max_rows, kRowCapacity);
  // Which kernel a sequence gets must not depend on the longest one of its batch.
  const bool may_decode = !(problem.batch_invariant && problem.layout == Layout::thd);
  if (may_decode && seqlen_q * std::min(group, std::int64_t{kernels.decode_max_rows}) <= kernels.decode_max_rows) {
    schedule.decode = true;
    schedule.queries_per_tile = seqlen_q;
    schedule.heads_per_tile = std::min(group, kernels.decode_max_rows / seqlen_q);
    schedule.keys_per_split = kKeysPerSplit;
    schedule.max_splits = std::max<std::int64_t>(1, ceil_div(problem.seqlen_k, kKeysPerSplit));
    schedule.merges = schedule.max_splits > 1 || problem.batch_invariant;
    return schedule;
  }
  schedule.heads_per_tile = std::clamp<std::int64_t>(most_rows / seqlen_q, 1, group);
  const std::int64_t tiles = ceil_div(seqlen_q * schedule.heads_per_tile, most_rows);
  schedule.queries_per_tile = std::min(seqlen_q, ceil_div(seqlen_q, tiles));
  return schedule;
}

std::unique_ptr<const core::Kernel> make_forward_kernel(const Problem& problem, const KernelSet& kernels) {
  return std::make_unique<ForwardKernel>(problem, kernels);
}

}  // namespace tilewise::backends::cpu
