// The forward pass over selected keys; see selected_forward.hpp.
#include "backends/cpu/selected_forward.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "backends/cpu/flush_denormals.hpp"
#include "backends/cpu/forward_parts.hpp"
#include "backends/cpu/score_functions.hpp"
#include "backends/cpu/selected_keys.hpp"
#include "backends/cpu/tile_maker.hpp"
#include "core/ceil_div.hpp"
#include "core/parallel.hpp"
#include "operations/attention/attention.hpp"

namespace tilewise::backends::cpu {
namespace {

using core::ceil_div;

class SelectedForwardKernel final : public operations::attention::Kernel {
 public:
  SelectedForwardKernel(const Problem& problem, const KernelSet& kernels)
      : parts_(problem, kernels), share_(heads_that_share_a_tile(problem)) {}

  [[nodiscard]] std::size_t workspace_size() const noexcept override { return 0; }

  [[nodiscard]] std::string schedule() const override {
    return "tile of a query's heads, keys gathered " + std::to_string(parts_.block_keys) + " at a time";
  }

  void launch(const device::AttentionParams& p, void*, void*) const override {
    const std::int64_t group = p.num_heads_q / std::max<std::int64_t>(p.num_heads_k, 1);
    CapturedTables tables;
    const ScoreParams score = parts_.scores.bind(p, tables);
    const int workers = workers_for(parts_.flops);
    const std::int64_t queries = p.batch_size * std::max<std::int64_t>(p.seqlen_q, 1) * p.num_heads_k;
    const std::int64_t members = members_a_task(group, std::min(share_, parts_.most_rows), queries, workers);
    const std::int64_t parts = ceil_div(group, members);
    core::parallel_for(queries * parts, workers, [&](std::int64_t task, int) {
      const FlushDenormals flush;
      const std::int64_t part = task % parts, head_k = task / parts % p.num_heads_k;
      const std::int64_t row = task / parts / p.num_heads_k, seqlen = std::max<std::int64_t>(p.seqlen_q, 1);
      const std::int64_t first = part * members;
      run_tile(p, TileMaker(p, score, parts_.element, row / seqlen), row / seqlen,
               {head_k, head_k * group + first, std::min(members, group - first), row % seqlen, 1});
    });
  }

 private:
  void run_tile(const device::AttentionParams& p, const TileMaker& maker, std::int64_t batch,
                const TileRows& which) const {
    if (which.first_query == 0) maker.clear_unused(which.first_head, which.num_heads);
    if (which.first_query >= maker.sequence().seqlen_q) return;
    std::array<RowInfo, kRowCapacity> rows;
    ForwardTile tile = maker.tile(which, TileSplit{}, rows.data());
    const SeenKeys seen = seen_keys(p.key_indices, {rows[0].key_begin, rows[0].key_end}, batch,
                                    maker.sequence().q_row + which.first_query, which.head_k);
    show_seen_keys(seen, rows.data(), tile);
    const StridedGatherer gatherer(tile, seen, parts_.block_keys, element_size(parts_.element));
    parts_.run(tile);
  }

  ForwardParts parts_;
  std::int64_t share_;  // query heads that one tile may hold
};

}  // namespace

std::unique_ptr<core::Kernel> make_selected_forward_kernel(const Problem& problem, const KernelSet& kernels) {
  return std::make_unique<SelectedForwardKernel>(problem, kernels);
}

}  // namespace tilewise::backends::cpu
