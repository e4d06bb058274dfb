// See tile_lists.hpp.
#include "backends/cuda/hopper/tile_lists.hpp"

#include "backends/cuda/hopper/kernels.hpp"
#include "backends/portable/attention/estimate.hpp"
#include "core/ceil_div.hpp"

namespace tilewise::backends::hopper {

portable::MaskTilesStep add_tile_lists(const Problem& p, const portable::DeviceTraits& traits,
                                       const device::MaskTilesConfig& config, gpu::LoweringBuilder& builder) {
  portable::MaskTilesStep step = portable::add_mask_tiles(p, traits, config, builder);
  const device::TileClasses<const std::uint8_t>& classes = step.classes;
  if (classes.bytes == 0) return step;
  device::HopperTileListsConfig c;
  c.ranges = config.keys_own;
  const std::int64_t tiles = classes.streamed, num_rows = classes.bytes / tiles, row_bytes = c.row_bytes(tiles);
  device::HopperTileListsParams params{};
  params.classes = classes;
  params.lists = {nullptr, classes.batch_stride / tiles * row_bytes, num_rows * row_bytes,
                  static_cast<std::int32_t>(row_bytes), c.ranges ? device::kQueryTileRanges : device::kListedKeyTiles};
  params.num_rows = static_cast<std::int32_t>(num_rows);
  const gpu::Extent3 grid{static_cast<std::uint32_t>(core::ceil_div(num_rows, std::int64_t{c.waves}))};
  builder.launch<TileLists>(gpu::Family::sm90, c, grid, params, [](const void*, void*) {});
  const auto& lists = params.lists;
  return {{nullptr, lists.batch_stride, lists.bytes, lists.streamed, lists.rows},
          step.estimated_us + portable::Estimator::kLaunchUs};
}

}  // namespace tilewise::backends::hopper
