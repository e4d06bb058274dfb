// A table of tiles, measured on an H200 (docs/hopper.md), and what follows from them.
#include "backends/cuda/hopper/schedule.hpp"

#include <algorithm>
#include <array>

#include "backends/portable/attention/schedule.hpp"
#include "core/message.hpp"
#include "operations/attention/work.hpp"

namespace tilewise::backends::hopper {
namespace {

using device::HopperForwardConfig, portable::group_of, portable::set_score_options;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int32_t padded(std::int64_t dim, std::int64_t unit) {
  return static_cast<std::int32_t>(ceil_div(dim, unit) * unit);
}

device::ElementType element_type(DType dtype) {
  return dtype == DType::fp8_e4m3 ? device::kE4m3 : dtype == DType::bf16 ? device::kBf16 : device::kF16;
}

/// Longest sequence a tile is chosen for. Of packed sequences the longest depends on the batch.
std::int64_t chosen_length(const Problem& p) {
  constexpr std::int64_t kTypical = 4096;
  return p.batch_invariant && p.layout == Layout::thd ? kTypical : p.seqlen_q;
}

/// How a tile of queries and keys is cut: consumers x 64 rows, block_n keys, and how many tiles are on their way.
struct Tile {
  std::int32_t consumers, block_n, stages, q_stages;
  bool watch_sums;
};

constexpr Tile kCrowded{2, 64, 4, 2, false};         // bias or dropout: registers for what a score needs
constexpr Tile kCrowdedWide{2, 64, 2, 2, false};     // likewise beyond head_dim 128
constexpr Tile kWidest{2, 64, 2, 1, false};          // head_dim 256
constexpr Tile kWide192{2, 80, 2, 2, false};         // head_dim_v to 192
constexpr Tile kWide128{2, 96, 2, 2, false};         // head_dim to 192 with head_dim_v to 128
constexpr Tile kMiddle{3, 64, 4, 2, true};           // head_dim 128
constexpr Tile kMiddleLong{3, 80, 3, 2, true};       // full from 16k
constexpr Tile kMiddle80{3, 96, 2, 2, true};         // head_dim to 80: a stage is as large as one of 128
constexpr Tile kNarrowShort{4, 64, 5, 2, false};     // head_dim 64, full to 1k, causal to 2k
constexpr Tile kNarrow{3, 128, 3, 2, false};         // full to 4k
constexpr Tile kNarrowLong{3, 96, 6, 2, true};       // and the rest
constexpr Tile kNarrowModified{3, 64, 8, 2, false};  // scores that are more than a scale

// fp8: keys in multiples of 32, the depth of a product. V takes room twice, as it comes and transposed.
constexpr Tile kFp8Narrow{3, 128, 3, 2, false};  // head_dim to 64
constexpr Tile kFp8Middle{3, 96, 3, 2, false};   // to 128
constexpr Tile kFp8Crowded{2, 64, 3, 2, false};  // to 128, with scores that are more than a scale
constexpr Tile kFp8Wide{2, 96, 2, 1, false};     // to 256
constexpr Tile kFp8WideCrowded{2, 64, 2, 1, false};

const Tile& fp8_tile_for(const HopperForwardConfig& c) {
  const std::int32_t dim = std::max(c.head_dim, c.head_dim_v);
  const bool crowded = !c.plain_scale || c.dropout;
  if (dim > 128) return crowded ? kFp8WideCrowded : kFp8Wide;
  if (crowded) return kFp8Crowded;
  return dim > 64 ? kFp8Middle : kFp8Narrow;
}

const Tile& tile_for(const Problem& p, const HopperForwardConfig& c) {
  if (c.fp8()) return fp8_tile_for(c);
  const std::int32_t dim = std::max(c.head_dim, c.head_dim_v);
  const std::int64_t length = chosen_length(p);
  const int modifications = c.softcap + c.alibi + (c.bias_type != device::kBiasNone);
  const bool crowded = c.dropout || c.bias_type != device::kBiasNone || modifications > 1;
  const bool plain = c.plain_scale && !c.dropout;
  if (dim > 192) return kWidest;
  if (dim > 128) return crowded ? kCrowdedWide : c.head_dim_v <= 128 ? kWide128 : kWide192;
  if (crowded) return kCrowded;
  if (dim > 80) return plain && !c.ranged && length >= 16384 ? kMiddleLong : kMiddle;
  if (dim > 64) return plain ? kMiddle80 : kMiddle;
  if (!plain) return kNarrowModified;
  if (!c.lengths && !c.pack_gqa && length <= (c.ranged ? 2048 : 1024)) return kNarrowShort;
  return c.ranged || length >= 8192 ? kNarrowLong : kNarrow;
}

}  // namespace

HopperForwardConfig forward_config(const Problem& p) {
  constexpr std::int64_t kFewQueries = 64;
  HopperForwardConfig c;
  c.q_type = c.k_type = c.v_type = element_type(p.dtype);
  c.out_type = element_type(operations::attention::out_dtype_of(p));
  c.head_dim = padded(p.head_dim, c.depth());
  c.head_dim_v = padded(p.head_dim_v, 16);
  set_score_options(c, p);
  c.windowed = p.window_left >= 0;
  c.sink = p.sink != SinkKind::none;
  // In fp8 a warpgroup has one factor between product and score, that of its head.
  c.pack_gqa = !c.fp8() && group_of(p) > 1 && group_of(p) <= HopperForwardConfig::kRows && p.seqlen_q <= kFewQueries;
  const Tile& tile = tile_for(p, c);
  c.waves = 4 * (tile.consumers + 1);
  c.block_n = tile.block_n;
  c.stages = tile.stages;
  c.q_stages = tile.q_stages;
  c.watch_sums = tile.watch_sums && c.plain_scale && !c.dropout && p.dtype == DType::bf16;
  c.dynamic = c.ranged || c.lengths;  // else every tile takes as long
  return c;
}

device::TileOrder tile_order(const Problem& p, const HopperForwardConfig& c, int multiprocessors) {
  device::TileOrder order{};
  const std::int64_t group = c.pack_gqa ? group_of(p) : 1;
  order.queries_per_warpgroup = static_cast<std::int32_t>(HopperForwardConfig::kRows / group);
  order.num_tiles =
      static_cast<std::int32_t>(ceil_div(p.seqlen_q, std::int64_t{c.consumers()} * order.queries_per_warpgroup));
  order.num_heads = static_cast<std::int32_t>(p.num_heads_q / group);
  order.batch_size = static_cast<std::int32_t>(p.batch_size);
  order.heads_at_once = 1;
  order.counters = c.dynamic ? 2 : 0;
  if (c.ranged && !c.windowed && order.num_tiles > 0) {
    // As many heads as fill the device, so that their keys stay in its cache; the short tiles of all heads even out
    // the end.
    const std::int64_t heads = p.num_heads_q / group * p.batch_size;
    order.heads_at_once =
        static_cast<std::int32_t>(std::clamp<std::int64_t>(ceil_div(multiprocessors, order.num_tiles), 1, heads));
    order.short_tiles = order.num_tiles / (p.seqlen_q >= 4096 ? 2 : 3);
  }
  return order;
}

std::int64_t tile_count(const device::TileOrder& order) {
  return std::int64_t{order.num_tiles} * order.num_heads * order.batch_size;
}

double forward_us(const Problem& p, const HopperForwardConfig& c, const core::DeviceDescription& device) {
  constexpr double kStartUs = 6.0, kTileUs = 2.5;  // of the launch, and of a tile of queries beside its keys
  constexpr double kLatencyUs = 0.9;               // of a tile of keys, at least
  constexpr double kOfPeak = 0.72;                 // the products' rate, of wgmma's peak
  constexpr double kWgmma = 2.0;                   // times mma.sync's rate, which matrix_rate is
  constexpr double kScore = 48.0;                  // a score's exponential and its neighbours, in flops
  constexpr double kSoftcap = 150.0, kDropout = 250.0, kBias = 250.0, kAlibi = 60.0;
  constexpr double kOfMemoryRate = 0.7;
  const auto f = [](std::int64_t n) { return static_cast<double>(n); };
  const operations::attention::Extent extent = operations::attention::typical_extent(p);
  const std::int64_t group = c.pack_gqa ? group_of(p) : 1;
  const double queries = f(c.consumers() * (HopperForwardConfig::kRows / group));
  const double share = p.layout == Layout::thd && p.seqlen_q > 0 ? std::max(extent.seqlen_q, 1.0) / f(p.seqlen_q) : 1.0;
  const double tiles =
      f(ceil_div(p.seqlen_q, static_cast<std::int64_t>(queries))) * share * f(p.num_heads_q / group * p.batch_size);
  const double steps = std::max(1.0, operations::attention::keys_seen(p, queries) / c.block_n);
  const double most = std::max(1.0, operations::attention::most_keys_seen(p, queries) / c.block_n);
  const double modified =
      c.softcap * kSoftcap + c.dropout * kDropout + c.alibi * kAlibi + (c.bias_type != device::kBiasNone ? kBias : 0.0);
  // Products in fp8 take half the time, what is done for a score takes as long.
  const double flops =
      f(c.block_m()) * c.block_n * (f(c.element_bytes()) * (c.head_dim + c.head_dim_v) + kScore + modified);
  const double flops_a_us = kOfPeak * kWgmma * 2.0 * device.matrix_rate * device.gigahertz * 1e3;
  const double step_us = flops / flops_a_us;
  const double rounds = std::max(1.0, tiles / device.multiprocessors);
  const double busy_us = rounds * (steps * step_us + kTileUs);
  const double alone_us = most * std::max(step_us, kLatencyUs) + kTileUs;
  const double bytes = f(c.element_bytes()) * f(p.head_dim + p.head_dim_v) *
                       (extent.total_q * f(p.num_heads_q) + extent.total_k * f(p.num_heads_k));
  const double memory_us = bytes / (kOfMemoryRate * device.memory_gigabytes_per_second * 1e3);
  return kStartUs + std::max({busy_us, alone_us, memory_us});
}

std::string describe(const HopperForwardConfig& c) {
  return core::concat(c.block_m(), "x", c.block_n, " tiles, ", c.consumers(), " warpgroups, ", c.stages, " stages",
                      c.dynamic ? ", dealt by a counter" : "", c.pack_gqa ? ", heads packed" : "");
}

}  // namespace tilewise::backends::hopper
