// The portable launch that joins parts of the keys, which every kernel here leaves in the same layout.
#pragma once

#include <cstdint>

#include "backends/portable/attention/schedule.hpp"
#include "core/ceil_div.hpp"
#include "device/common/params.h"
#include "gpu/lowering.hpp"
#include "operations/attention/call.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::hopper {

/// Kernel: portable::Combine or portable::KvCacheCombine.
template <typename Kernel>
void add_combine(const typename Kernel::Config& config, const Problem& attention, std::int64_t splits, gpu::Bind bind,
                 gpu::LoweringBuilder& builder) {
  const std::int64_t tiles = portable::combine_tiles(attention, config, splits, gpu::Family::sm80);
  typename Kernel::Params params{};
  params.shape = operations::attention::shape_of(attention);
  params.grid = device::tile_grid(tiles, 1, attention.num_heads_q, portable::group_of(attention));
  params.num_splits = splits;
  const gpu::Extent3 grid{static_cast<std::uint32_t>(tiles * attention.num_heads_q * attention.batch_size)};
  builder.launch<Kernel>(gpu::Family::sm80, config, grid, params, bind);
}

}  // namespace tilewise::backends::hopper
