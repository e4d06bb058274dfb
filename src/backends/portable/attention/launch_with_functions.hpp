// Launches of kernels whose scores functions of the problem's change.
#pragma once

#include "backends/portable/attention/functions.hpp"
#include "backends/portable/attention/kernels.hpp"
#include "gpu/lowering.hpp"

namespace tilewise::backends::portable {

/// `own`: the block without tables. `bind` sets one with them. Null where the grid has no blocks.
template <typename Kernel>
gpu::Launch* launch_with_functions(const Problem& problem, gpu::Family family, const typename Kernel::Config& config,
                                   gpu::Extent3 grid, const typename Kernel::Params& own,
                                   const device::TileClasses<const std::uint8_t>& classes, gpu::Bind bind,
                                   gpu::LoweringBuilder& builder, FunctionUse use = {}) {
  using With = WithFunctions<Kernel>;
  typename With::Params params{own, classes, {}};
  set_tables(problem, params.tables);
  gpu::Launch* const launch = builder.launch<With>(family, config, grid, params, bind);
  if (launch != nullptr) launch->key.definitions = function_definitions(problem, use);
  return launch;
}

}  // namespace tilewise::backends::portable
