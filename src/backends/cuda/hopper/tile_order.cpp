// In which order tiles of queries are scheduled: what device/hopper/tile_order.h reads an index by.
#include <algorithm>

#include "backends/cuda/hopper/schedule.hpp"
#include "backends/portable/attention/schedule.hpp"
#include "core/ceil_div.hpp"

namespace tilewise::backends::hopper {

using core::ceil_div, device::HopperForwardConfig, portable::group_of;

namespace {

/// Of as many heads as fill the device, so that their keys stay in its cache: those that make sets of one size, if any
/// are near.
std::int64_t heads_of_set(std::int64_t heads, std::int64_t filling) {
  std::int64_t even = std::min(filling + filling / 2, heads);
  while (heads % even != 0) --even;
  return 2 * even >= filling ? even : std::min(filling, heads);
}

/// Tiles differ in length: short ones at the very end even it out.
void order_by_length(const Problem& p, int multiprocessors, device::TileOrder& order) {
  constexpr std::int32_t kFewTiles = 4, kFewHeads = 4;
  const std::int32_t heads = order.num_heads * order.batch_size;
  if (order.num_tiles <= kFewTiles) {
    // Such calls wait for memory. A head's tiles are worked on side by side, and the short ones of no more heads than
    // the end needs come so late that their keys are read once again.
    order.heads_at_once = std::min(kFewHeads, heads);
    order.short_tiles = std::max(order.num_tiles / 3, 1);
    order.first_late_head = std::max(heads - multiprocessors / 2, 0);
  } else {
    order.heads_at_once = static_cast<std::int32_t>(heads_of_set(heads, ceil_div(multiprocessors, order.num_tiles)));
    order.short_tiles = order.num_tiles / (p.seqlen_q >= 4096 ? 2 : 3);
  }
}

/// Beside a window most tiles are as long as another: all heads' first ones, which are shorter, at the very end even it
/// out.
void order_beside_window(device::TileOrder& order) {
  constexpr std::int32_t kShortTiles = 3;
  order.short_tiles = std::min(kShortTiles, order.num_tiles / 3);
}

}  // namespace

device::TileOrder tile_order(const Problem& p, const ForwardSchedule& schedule, int multiprocessors) {
  const HopperForwardConfig& c = schedule.config;
  device::TileOrder order{};
  const std::int64_t group = c.pack_gqa ? group_of(p) : 1;
  order.queries_per_warpgroup = static_cast<std::int32_t>(HopperForwardConfig::kRows / group);
  order.num_tiles = static_cast<std::int32_t>(ceil_div(p.seqlen_q, c.blocks_of_cluster() * queries_of_block(p, c)));
  order.num_heads = static_cast<std::int32_t>(p.num_heads_q / group);
  order.batch_size = static_cast<std::int32_t>(p.batch_size);
  order.num_splits = static_cast<std::int32_t>(schedule.splits);
  order.heads_at_once = 1;
  order.counters = c.dynamic ? device::kCounterWords : 0;
  // Entries of a batch that have a bias in common read it side by side, from the cache.
  order.batch_inside = p.bias != BiasKind::none && p.bias_dims.head && !p.bias_dims.batch;
  const bool several = order.num_tiles > 1 && order.num_heads > 0 && order.batch_size > 0;
  if (c.windowed && several) order_beside_window(order);
  // What mask_mod leaves is taken for what a causal mask does.
  const bool differ = c.ranged || skips_tiles(p, c);
  if (differ && !c.windowed && several) order_by_length(p, multiprocessors, order);
  return order;
}

}  // namespace tilewise::backends::hopper
