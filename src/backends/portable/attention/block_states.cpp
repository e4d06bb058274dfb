// Partial blocks first, then full ones; see block_states.hpp.
#include "backends/portable/attention/block_states.hpp"

#include "backends/portable/attention/estimate.hpp"
#include "backends/portable/attention/kernels.hpp"
#include "core/ceil_div.hpp"
#include "operations/attention/block_mask.hpp"

namespace tilewise::backends::portable {

Problem with_block_states(const Problem& problem) {
  return operations::with_block_table(problem, operations::attention::blocked_scores(problem));
}

double add_block_states(const operations::BlockedScores& scores, const DeviceTraits& traits,
                        gpu::LoweringBuilder& builder, gpu::Bind bind) {
  constexpr double kUs = 2.0;
  if (scores.mask.rows == 0) return 0.0;
  const operations::BlockGrid grid = block_grid(scores);
  const device::BlockStatesConfig config;
  device::BlockStatesParams params{};
  params.batch = static_cast<std::int32_t>(grid.batch);
  params.heads = static_cast<std::int32_t>(grid.heads);
  params.rows = static_cast<std::int32_t>(grid.rows);
  params.columns = static_cast<std::int32_t>(grid.columns);
  const std::int64_t lists = grid.batch * grid.heads * grid.rows;
  const gpu::Extent3 blocks{static_cast<std::uint32_t>(core::ceil_div(lists, std::int64_t{config.waves}))};
  builder.clear(kBlockStatesPart);
  double us = Estimator::kLaunchUs;
  for (std::size_t tensor = operations::kBlockCounts; tensor < operations::block_mask_tensors(scores.mask);
       tensor += 2) {
    params.tensor = static_cast<std::int32_t>(tensor);
    params.state = tensor == operations::kBlockCounts ? operations::kBlockPartial : operations::kBlockFull;
    builder.launch<BlockStates>(traits.family, config, blocks, params, bind);
    us += Estimator::kLaunchUs + kUs;
  }
  return us;
}

double add_block_states(const Problem& p, const DeviceTraits& traits, gpu::LoweringBuilder& builder) {
  return add_block_states(operations::attention::blocked_scores(p), traits, builder,
                          bind_block_states<device::AttentionParams>);
}

}  // namespace tilewise::backends::portable
