// Tensor maps, schedule and launches of MLA's decoding; see latent.hpp.
#include "backends/cuda/hopper/latent.hpp"

#include <algorithm>
#include <cstddef>

#include "backends/cuda/hopper/cache_step.hpp"
#include "backends/cuda/hopper/forward_launch.hpp"
#include "backends/cuda/hopper/tensor_maps.hpp"
#include "backends/portable/attention/schedule.hpp"
#include "backends/portable/attention/selected_keys.hpp"
#include "backends/portable/kv_cache/key_parts.hpp"
#include "backends/portable/kv_cache/schedule.hpp"
#include "backends/portable/traits.hpp"
#include "core/ceil_div.hpp"
#include "core/message.hpp"
#include "operations/attention/call.hpp"
#include "operations/kv_cache/rules.hpp"

namespace tilewise::backends::hopper {
namespace {

using core::ceil_div, core::concat;
using device::HopperLatentConfig, device::HopperLatentParams;

constexpr std::int64_t kChunkColumns = 64;  // of a box
constexpr std::int64_t kMostPart = 512;     // columns of values

/// All heads are of one group, which is no dimension here.
void bind_q(const void* call, gpu::TensorMap& map) {
  const device::AttendedRows rows = CacheCalls::of(call);
  gpu::TensorMap grouped = map;
  bind_query_rows(rows, rows.q, rows.head_dim, rows.num_heads_q, grouped);
  map.address = grouped.address;
  map.dims = {grouped.dims[0], grouped.dims[1], grouped.dims[2], grouped.dims[4]};
  map.strides = {grouped.strides[0], grouped.strides[1], grouped.strides[3]};
}

std::vector<gpu::TensorMapParameter> tensor_maps(const KvCacheProblem& p, const LatentSchedule& schedule) {
  gpu::TensorMap rows, keys;
  rows.dtype = keys.dtype = p.dtype;
  rows.rank = keys.rank = 4;
  rows.box = {box_columns(p.dtype), static_cast<std::uint32_t>(schedule.order.heads_of_tile),
              static_cast<std::uint32_t>(schedule.order.queries_of_tile), 1};
  keys.box = {box_columns(p.dtype), static_cast<std::uint32_t>(schedule.config.keys_of_box()), 1, 1};
  return {{offsetof(HopperLatentParams, q_map), rows, bind_q},
          {offsetof(HopperLatentParams, k_map), keys, map_binds<CacheCalls>(false).k}};
}

void bind_latent(const void* call, void* block) {
  auto& params = *static_cast<HopperLatentParams*>(block);
  bind_step(call, params);
  params.key_indices = CacheCalls::of(call).key_indices;
}

/// Of the longest sequence.
std::int64_t keys_of(const KvCacheProblem& p) { return p.top_k > 0 ? p.top_k : operations::kv_cache::capacity_of(p); }

HopperLatentConfig config_for(const KvCacheProblem& p) {
  HopperLatentConfig c;
  c.q_type = c.k_type = c.v_type = c.out_type = p.dtype == DType::bf16 ? device::kBf16 : device::kF16;
  c.head_dim = static_cast<std::int32_t>(p.head_dim);
  c.head_dim_v = static_cast<std::int32_t>(p.head_dim_v);
  c.waves = HopperLatentConfig::kThreads / 32;
  c.lengths = 1;
  c.exact_dims = 1;
  portable::set_score_options(c, portable::attention_of(p));
  c.page_size = static_cast<std::int32_t>(p.page_size);
  c.selects = p.top_k > 0;
  return c;
}

/// Whether two blocks, whose rows are heads of one query, load each tile of keys for both. Beside each block for
/// itself that takes 6% less where a tile is many copies, and 3% more where it is few, since stages wait for both.
bool shares_keys(const HopperLatentConfig& config, const device::LatentOrder& order) {
  constexpr std::int32_t kKeysOfBox = 16;
  return order.head_tiles % 2 == 0 && config.keys_of_box() <= kKeysOfBox;
}

device::LatentOrder order_for(const KvCacheProblem& p) {
  constexpr std::int64_t kRows = HopperLatentConfig::kRows;
  device::LatentOrder order{};
  const std::int64_t heads = std::min(kRows, p.num_heads_q), queries = p.top_k > 0 ? 1 : kRows / heads;
  order.heads_of_tile = static_cast<std::int32_t>(heads);
  order.queries_of_tile = static_cast<std::int32_t>(queries);
  order.head_tiles = static_cast<std::int32_t>(ceil_div(p.num_heads_q, heads));
  order.row_tiles = static_cast<std::int32_t>(ceil_div(p.seqlen_q, queries)) * order.head_tiles;
  order.num_splits = 1;
  return order;
}

/// Model of one H200, within 12% of 43 measured schedules of 1 to 64 sequences: blocks in rounds, each tile of keys in
/// turn, beside the cache's way from memory.
class LatentEstimator {
 public:
  LatentEstimator(const KvCacheProblem& p, const core::DeviceDescription& device) : p_(p), device_(device) {}

  [[nodiscard]] double us(const LatentSchedule& s) const {
    constexpr double kStartUs = 5.0, kBlockUs = 0.7, kTileUs = 1.61, kOfMemoryRate = 0.54;
    constexpr double kBlocksForAll = 44.0;  // that draw all of the memory's rate
    const double tiles = std::ceil(f(keys_of(p_)) / HopperLatentConfig::kKeys);
    const std::int64_t splits = s.order.num_splits;
    const double a_part = std::max(1.0, std::ceil(tiles / f(splits)));
    const double blocks = f(p_.batch_size) * s.order.row_tiles * f(splits);
    const double rounds = std::max(1.0, std::ceil(blocks / device_.multiprocessors));
    const double of_dims = f(p_.head_dim + p_.head_dim_v) / (576.0 + 512.0);
    const double busy_us = rounds * (a_part * kTileUs * of_dims + kBlockUs);
    const double bytes = 2.0 * f(p_.batch_size) * tiles * HopperLatentConfig::kKeys * f(p_.head_dim);
    const double share = std::min(1.0, blocks / kBlocksForAll);
    const double memory_us = bytes / (share * kOfMemoryRate * device_.memory_gigabytes_per_second * 1e3);
    return kStartUs + std::max(busy_us, memory_us) + merge_us(splits);
  }

 private:
  static double f(std::int64_t n) { return static_cast<double>(n); }
  /// Sums in fp32 on their way to memory and back, and the launch that waits for them.
  [[nodiscard]] double merge_us(std::int64_t splits) const {
    if (splits == 1) return 0.0;
    constexpr double kLaunchUs = 3.8, kBytes = 8.1;  // of a sum, at what combine sustains
    const portable::DeviceTraits traits = portable::traits_of(device_, gpu::Family::sm80);
    const double sums = f(splits) * f(p_.batch_size * p_.seqlen_q * p_.num_heads_q) * f(p_.head_dim_v);
    return kLaunchUs + 1e-3 * kBytes * sums / traits.gigabytes_per_second;
  }

  const KvCacheProblem& p_;
  const core::DeviceDescription& device_;
};

/// By the portable kernels' rule. Row tiles that fill the device by themselves, as those of a chunk of queries do, want
/// no parts.
device::KeySchedule schedule_keys(const KvCacheProblem& p, const core::DeviceDescription& device,
                                  const device::LatentOrder& order) {
  const portable::DeviceTraits traits = portable::traits_of(device, gpu::Family::sm80);
  if (order.row_tiles > traits.multiprocessors || p.top_k > 0) return {};
  const portable::ScheduledBlocks blocks{order.row_tiles, 1, HopperLatentConfig::kKeys,
                                         HopperLatentConfig::kSchedulesSparingly};
  return portable::schedule_keys(p, traits, blocks);
}

}  // namespace

std::string latent_refusal(const KvCacheProblem& p) {
  if (p.head_dim_v % (2 * kChunkColumns) != 0 || p.head_dim_v > kMostPart ||
      p.head_dim != p.head_dim_v + kChunkColumns) {
    return concat(
        "with mla, head_dim_v must be a multiple of 128 up to 512, and head_dim must be head_dim_v + 64 (got ",
        p.head_dim_v, " and ", p.head_dim, ")");
  }
  if (p.num_heads_k != 1) return concat("with mla, num_heads_k must be 1 (got ", p.num_heads_k, ")");
  if (p.window_left >= 0) return concat("with mla, window_left must be -1 (got ", p.window_left, ")");
  if (p.rotary_dim != 0) return concat("with mla, rotary_dim must be 0 (got ", p.rotary_dim, ")");
  if (p.softcap != 0.0) return concat("with mla, softcap must be 0 (got ", p.softcap, ")");
  if (p.softmax_scale <= 0.0) return concat("with mla, softmax_scale must be > 0 (got ", p.softmax_scale, ")");
  if (p.alibi_slopes != AlibiKind::none) return "with mla, alibi_slopes must be none (got some)";
  if (p.sink != SinkKind::none) return "with mla, sink must be none (got one)";
  if (p.unaligned) return "every row of q, k_cache and out must start on 16 bytes (got one that does not)";
  return portable::selection_refusal(p.top_k);
}

LatentSchedule latent_schedule(const KvCacheProblem& p, const core::DeviceDescription& device) {
  const LatentEstimator estimator(p, device);
  LatentSchedule one{config_for(p), order_for(p)};
  one.config.clustered = shares_keys(one.config, one.order);
  one.us = estimator.us(one);
  const auto in_parts = [&](std::int64_t splits) {
    LatentSchedule schedule = one;
    schedule.config.split = 1;
    schedule.order.num_splits = static_cast<std::int32_t>(splits);
    schedule.us = estimator.us(schedule);
    return schedule;
  };
  constexpr std::int64_t kMost = device::kMostSplits;
  if (p.num_splits > 1) return in_parts(std::min(p.num_splits, kMost));
  if (p.num_splits == 1 || p.batch_invariant) return one;
  LatentSchedule best = one;
  const std::int64_t tiles = ceil_div(keys_of(p), std::int64_t{HopperLatentConfig::kKeys});
  for (std::int64_t splits = 2; splits <= std::min(tiles, kMost); ++splits) {
    const LatentSchedule candidate = in_parts(splits);
    if (candidate.us < best.us) best = candidate;
  }
  // Estimated as if each sequence filled the cache.
  if (const device::KeySchedule key_schedule = schedule_keys(p, device, best.order); key_schedule.places > 0) {
    best.config.split = best.config.schedules_keys = 1;
    best.order.num_splits = 1;
    best.key_schedule = key_schedule;
  }
  return best;
}

gpu::Outcome lower_latent(const KvCacheProblem& p, const core::DeviceDescription& device) {
  if (std::string reason = latent_refusal(p); !reason.empty()) return {{}, std::move(reason)};
  const LatentSchedule schedule = latent_schedule(p, device);
  const bool scheduled = schedule.key_schedule.places > 0;
  const std::int64_t splits = schedule.order.num_splits;
  const std::int64_t blocks =
      schedule.order.row_tiles * (scheduled ? schedule.key_schedule.places : p.batch_size * splits);
  constexpr std::int64_t kMostBlocks = std::int64_t{1} << 30;
  if (blocks > kMostBlocks) return {{}, concat("blocks must be <= 2^30 (got ", blocks, ")")};
  gpu::LoweringBuilder builder(portable::traits_of(device, gpu::Family::sm80).overlaps_steps);
  const Problem attention = portable::attention_of(p);
  HopperLatentParams params{};
  params.shape = operations::attention::shape_of(attention);
  params.order = schedule.order;
  params.key_schedule = schedule.key_schedule;
  const gpu::Extent3 grid{static_cast<std::uint32_t>(blocks)};
  if (gpu::Launch* launch = builder.launch<Latent>(gpu::Family::sm90, schedule.config, grid, params, bind_latent)) {
    launch->tensor_maps = tensor_maps(p, schedule);
    launch->cluster.x = static_cast<std::uint32_t>(schedule.config.blocks_of_cluster());
  }
  builder.append_schedule(concat("64x64 tiles, 2 warpgroups that share values, 2 stages",
                                 schedule.config.clustered ? ", pairs of blocks that share keys" : "",
                                 scheduled ? concat(", ", schedule.key_schedule.places, " parts scheduled by lengths")
                                 : splits > 1 ? concat(", ", splits, " splits")
                                              : std::string()));
  if (scheduled) {
    add_scheduled_combine(attention, schedule.key_schedule, device.multiprocessors, builder);
  } else if (splits > 1) {
    add_cache_combine(attention, splits, builder);
  }
  gpu::Outcome outcome{builder.finish(), {}};
  outcome.lowering.estimated_us = schedule.us;
  return outcome;
}

}  // namespace tilewise::backends::hopper
