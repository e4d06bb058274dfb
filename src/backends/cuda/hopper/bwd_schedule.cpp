// See bwd_schedule.hpp. A list schedule of tiles, as the multiprocessors take them, is what tests hold it against.
#include "backends/cuda/hopper/bwd_schedule.hpp"

#include <algorithm>

#include "backends/cuda/hopper/bwd_estimate.hpp"
#include "backends/portable/attention/functions.hpp"
#include "backends/portable/attention/schedule.hpp"
#include "backends/portable/attention/splits.hpp"
#include "core/ceil_div.hpp"
#include "device/attention/config.h"
#include "operations/attention/rules.hpp"
#include "operations/attention/work.hpp"

namespace tilewise::backends::hopper {
namespace {

using core::ceil_div;

constexpr std::int32_t kShortTiles = 4;   // under a causal mask one in so many of a head's is left to the end
constexpr std::int64_t kFewSets = 8;      // more sets of heads even out whatever the last one is
constexpr std::int32_t kNarrowTile = 64;  // queries of a tile, and more of head dims to as many

std::int64_t heads_that_fill(std::int64_t heads, std::int64_t tiles, std::int64_t multiprocessors) {
  return std::clamp<std::int64_t>(ceil_div(multiprocessors, tiles), 1, heads);
}

/// Heads whose tiles of keys are scheduled together under a causal mask: as many as fill the device, so that their
/// queries stay in its cache. Where heads are few, as many as it takes for the last set and the shortest tiles of all
/// heads to last as long as the longest tile, which begins with them: 16 heads of 32 tiles in sets of 5 would leave one
/// head for the end, and a tenth of the device idle.
std::int64_t heads_of_set(std::int64_t heads, std::int64_t tiles, std::int64_t multiprocessors) {
  const std::int64_t filling = heads_that_fill(heads, tiles, multiprocessors);
  if (heads >= kFewSets * filling) return filling;
  // Of a head's mean tile the longest is twice as long; its shortest ones have one part in 16 of its work.
  constexpr std::int64_t kParts = std::int64_t{kShortTiles} * kShortTiles;
  const std::int64_t lasting = ceil_div(2 * kParts * multiprocessors - heads * tiles, (kParts - 1) * tiles);
  return ceil_div(heads, std::max<std::int64_t>(heads / std::max(filling, lasting), 1));
}

/// Of an order both ways, how many heads have their first keys first: the last ones, no fewer than a set and less than
/// two, or all. Where many have, fewer of a head's tiles are worked on together and share what L2 holds. To 64 columns
/// it is a set more, which short causal sequences gain up to 1.4% by.
std::int64_t rising_heads(std::int64_t heads, std::int64_t a_set, bool narrow) {
  return heads - std::max<std::int64_t>(heads / a_set - (narrow ? 2 : 1), 0) * a_set;
}

/// Wide heads with few tiles wait for memory. A head's shortest ones left to the end would read its queries, and what
/// dq has by then, once more (512 keys of 256 heads: 100 MB of some 700).
bool waits_for_memory(const device::HopperBwdConfig& c, std::int64_t heads, std::int64_t tiles,
                      std::int64_t multiprocessors) {
  constexpr std::int64_t kFewTiles = 8;
  const bool by_counter = c.shares_keys && c.persistent;
  return by_counter && tiles <= kFewTiles && heads >= kFewSets * heads_that_fill(heads, tiles, multiprocessors);
}

}  // namespace

std::int64_t tiles_of_keys(const Problem& p, const device::HopperBwdConfig& c) {
  return ceil_div(p.seqlen_k, c.block_n()) * p.num_heads_k * p.batch_size;
}

std::int64_t key_blocks(const Problem& p, const device::HopperBwdConfig& c, const core::DeviceDescription& device) {
  return tiles_of_keys(p, c) * head_shares(p, c, device);
}

bool has_quick_memory(const core::DeviceDescription& device) {
  constexpr double kQuick = 4000.0;
  return device.memory_gigabytes_per_second >= kQuick;
}

std::int64_t head_shares(const Problem& p, const device::HopperBwdConfig& c, const core::DeviceDescription& device) {
  constexpr std::int64_t kFewKeys = 1024, kMoreKeys = 2048;
  if (!c.grouped) return 1;
  const bool narrow = c.block_m > kNarrowTile;
  const std::int64_t group = portable::group_of(p), short_keys = narrow ? 1024 : 512;
  if (!c.ordered || !c.ranged || looks_near(p, c) || p.seqlen_k <= short_keys) return 1;
  const bool long_ones = p.seqlen_k > (c.own_dq ? kFewKeys : kMoreKeys);
  const bool in_pairs = narrow || c.shares_keys || (has_quick_memory(device) && !long_ones);
  return in_pairs && group % 2 == 0 ? group / 2 : group;
}

bool looks_near(const Problem& p, const device::HopperBwdConfig& c) {
  constexpr std::int64_t kLongWindow = 2048;
  return c.windowed && p.window_left + std::max<std::int64_t>(p.window_right, 0) <= kLongWindow;
}

device::TileOrder key_order(const Problem& p, const device::HopperBwdConfig& c, const core::DeviceDescription& device) {
  const std::int64_t multiprocessors = device.multiprocessors;
  device::TileOrder order{};
  const std::int64_t tiles = ceil_div(p.seqlen_k, c.block_n()), heads = p.num_heads_k * p.batch_size;
  order.num_tiles = static_cast<std::int32_t>(tiles * head_shares(p, c, device));
  order.num_heads = static_cast<std::int32_t>(p.num_heads_k);
  order.batch_size = static_cast<std::int32_t>(p.batch_size);
  order.num_splits = order.heads_at_once = 1;
  if (tiles == 0 || heads == 0) return order;
  if (c.ordered || head_shares(p, c, device) > 1) {
    // In an order the shortest ones come first, and heads in turn, so that blocks of a head, which wait for each other,
    // begin one after another. Of a group's heads a tile comes again when all multiprocessors have had others since.
    order.heads_at_once = static_cast<std::int32_t>(heads_that_fill(heads, tiles, multiprocessors));
    if (c.both_ways)
      order.rising_heads = static_cast<std::int32_t>(rising_heads(heads, order.heads_at_once, c.block_m > kNarrowTile));
  } else if (c.windowed) {
    // At the end the shorter half of those whose queries end with the sequence, before the window does.
    order.short_tiles = static_cast<std::int32_t>(std::min(tiles, ceil_div(p.window_left, c.block_n())) / 2);
  } else if (c.ranged || !p.mask_mod.empty()) {  // whose tiles are taken for those of a causal mask
    order.heads_at_once = static_cast<std::int32_t>(heads_of_set(heads, tiles, multiprocessors));
    if (!waits_for_memory(c, heads, tiles, multiprocessors)) order.short_tiles = order.num_tiles / kShortTiles;
  }
  return order;
}

std::int64_t first_heads(const Problem& p, const device::HopperBwdConfig& c, const core::DeviceDescription& device) {
  const std::int64_t heads = p.num_heads_q * p.batch_size, tiles = ceil_div(p.seqlen_k, c.block_n());
  if (tiles == 0) return heads;
  const std::int64_t filling = heads_that_fill(p.num_heads_k * p.batch_size, tiles, device.multiprocessors),
                     a_set = std::max<std::int64_t>(key_order(p, c, device).heads_at_once, filling);
  return std::min(heads, (a_set + 1) * portable::group_of(p));
}

bool has_late_preprocess(const Problem& p, const device::HopperBwdConfig& c, const core::DeviceDescription& device) {
  constexpr double kFewKeys = 240.0, kFewerKeys = 160.0;
  const bool wide = c.shares_keys || c.own_dq;
  const bool spills = c.lengths && wide, slow = c.softcap && c.couriers() && !c.ranged;
  const double fewest_keys = (wide || c.block_m > kNarrowTile ? kFewerKeys : kFewKeys) * (c.lengths ? 2.0 : 1.0);
  return !spills && !slow && operations::attention::keys_seen(p) >= fewest_keys &&
         first_heads(p, c, device) < p.num_heads_q * p.batch_size;
}

std::int64_t late_blocks(bool clears, const core::DeviceDescription& device) {
  return std::max(device.multiprocessors / (clears ? 11 : 13), 1);
}

bool each_query_sees_a_key(const Problem& p, const device::HopperBwdConfig& c) {
  if (c.lengths || p.seqlen_k == 0 || portable::has_functions(p)) return false;
  const std::int64_t left = p.window_left, right = operations::attention::folded_window_right(p);
  const std::int64_t diagonal = p.alignment == Alignment::bottom_right ? p.seqlen_k - p.seqlen_q : 0;
  const bool first_does = right < 0 || diagonal + right >= 0;
  const bool last_does = left < 0 || diagonal + p.seqlen_q - 1 - left < p.seqlen_k;
  return first_does && last_does;
}

/// Under a causal mask the longest tile of keys takes twice as long as the mean one: as many of them as there are
/// multiprocessors leave half of these idle in the mean.
std::int64_t query_parts(const Problem& p, const device::HopperBwdConfig& c, const core::DeviceDescription& device) {
  constexpr std::int64_t kFewestStepsAPart = 4, kMostTimesAsMany = 4;
  constexpr double kWorthwhile = 0.9;  // of the time with fewer parts: the estimate is no better
  const std::int64_t tiles = std::max<std::int64_t>(ceil_div(p.seqlen_q, c.block_m), 1);
  const std::int64_t steps = tiles * portable::group_of(p) / head_shares(p, c, device);
  std::int64_t parts =
      std::min(tiles, portable::query_splits(p, key_blocks(p, c, device), steps, device.multiprocessors));
  if (p.batch_invariant || !c.ranged) return parts;
  const std::int64_t most =
      std::min({tiles, steps / kFewestStepsAPart, kMostTimesAsMany * parts, std::int64_t{device::kMostSplits}});
  double least = backward_us(p, c, parts, device);
  for (std::int64_t more = parts + 1; more <= most; ++more) {
    const double us = backward_us(p, c, more, device);
    if (us < kWorthwhile * least) least = us, parts = more;
  }
  return parts;
}

}  // namespace tilewise::backends::hopper
