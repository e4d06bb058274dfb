// The forward pass on the CPU; see forward_kernel.hpp.
#include "backends/cpu/forward_kernel.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "backends/cpu/decode_kernel.hpp"
#include "backends/cpu/flush_denormals.hpp"
#include "backends/cpu/forward_parts.hpp"
#include "backends/cpu/score_functions.hpp"
#include "backends/cpu/selected_forward.hpp"
#include "backends/cpu/tile_maker.hpp"
#include "core/ceil_div.hpp"
#include "core/parallel.hpp"
#include "operations/attention/attention.hpp"

namespace tilewise::backends::cpu {
namespace {

using core::ceil_div;

constexpr std::int64_t kFewestQueries = 24;  // packing a key block for fewer costs more than it saves

class ForwardKernel final : public operations::attention::Kernel {
 public:
  ForwardKernel(const Problem& problem, const KernelSet& kernels) : parts_(problem, kernels) {
    const std::int64_t seqlen_q = std::max<std::int64_t>(problem.seqlen_q, 1), most_rows = parts_.most_rows;
    heads_per_tile_ = std::clamp<std::int64_t>(most_rows / seqlen_q, 1, heads_that_share_a_tile(problem));
    queries_per_tile_ = ceil_div(seqlen_q, ceil_div(seqlen_q * heads_per_tile_, most_rows));
  }

  [[nodiscard]] std::size_t workspace_size() const noexcept override { return 0; }

  [[nodiscard]] std::string schedule() const override {
    return "tile of " + std::to_string(heads_per_tile_) + " heads x " + std::to_string(queries_per_tile_) + " queries";
  }

  void launch(const device::AttentionParams& p, void*, void*) const override {
    const std::int64_t group = p.num_heads_q / std::max<std::int64_t>(p.num_heads_k, 1);
    const std::int64_t tiles_a_key_head = ceil_div(group, heads_per_tile_);
    const std::int64_t heads = p.batch_size * p.num_heads_k * tiles_a_key_head;
    CapturedTables tables;
    const ScoreParams score = parts_.scores.bind(p, tables);
    const int workers = workers_for(parts_.flops);
    const std::int64_t queries = queries_a_task(heads, p.seqlen_q, workers);
    const std::int64_t query_tiles = std::max<std::int64_t>(1, ceil_div(p.seqlen_q, queries));
    // Later query tiles see more keys under a causal mask: they start first.
    core::parallel_for(query_tiles * heads, workers, [&](std::int64_t task, int) {
      const FlushDenormals flush;
      const std::int64_t head = task % heads / tiles_a_key_head, part = task % tiles_a_key_head;
      const std::int64_t head_k = head % p.num_heads_k, first_head = head_k * group + part * heads_per_tile_;
      const TileRows rows{head_k, first_head, std::min(heads_per_tile_, (head_k + 1) * group - first_head),
                          (query_tiles - 1 - task / heads) * queries, queries};
      run_tile(TileMaker(p, score, parts_.element, head / p.num_heads_k), rows);
    });
  }

 private:
  /// Smaller tiles than the schedule's where they would leave workers idle. A row's result does
  /// not depend on its tile: blocks of keys start at fixed places.
  [[nodiscard]] std::int64_t queries_a_task(std::int64_t heads, std::int64_t seqlen_q, int workers) const {
    std::int64_t queries = queries_per_tile_;
    while (queries >= 2 * kFewestQueries && heads * ceil_div(seqlen_q, queries) < 2 * workers)
      queries = ceil_div(queries, 2);
    return queries;
  }

  void run_tile(const TileMaker& maker, TileRows which) const {
    if (which.first_query == 0) maker.clear_unused(which.first_head, which.num_heads);
    which.num_queries = std::min(which.num_queries, maker.sequence().seqlen_q - which.first_query);
    if (which.num_queries <= 0) return;
    std::array<RowInfo, kRowCapacity> rows;
    ForwardTile tile = maker.tile(which, TileSplit{}, rows.data());
    tile.blocks = maker.blocks(which, tile, parts_.block_keys);
    parts_.run(tile);
  }

  ForwardParts parts_;
  std::int64_t heads_per_tile_ = 1, queries_per_tile_ = 1;
};

}  // namespace

std::unique_ptr<core::Kernel> make_forward_kernel(const Problem& problem, const KernelSet& kernels) {
  if (problem.top_k > 0) return make_selected_forward_kernel(problem, kernels);
  if (suits_decode(problem, kernels)) return make_decode_kernel(problem, kernels);
  return std::make_unique<ForwardKernel>(problem, kernels);
}

}  // namespace tilewise::backends::cpu
