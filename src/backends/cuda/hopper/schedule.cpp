// The forward kernel's config and the parts of its keys: what the problem asks for, its tile, and what follows from it.
#include "backends/cuda/hopper/schedule.hpp"

#include <algorithm>
#include <limits>

#include "backends/cuda/hopper/candidates.hpp"
#include "backends/cuda/hopper/estimate.hpp"
#include "backends/cuda/hopper/forward_tiles.hpp"
#include "backends/cuda/hopper/kernels.hpp"
#include "backends/cuda/hopper/tensor_maps.hpp"
#include "backends/cuda/hopper/tile_lists.hpp"
#include "backends/portable/attention/schedule.hpp"
#include "core/ceil_div.hpp"
#include "core/message.hpp"

namespace tilewise::backends::hopper {
namespace {

using core::ceil_div;

constexpr std::int64_t kMostSplits = device::kMostSplits, kFewestStepsAPart = 2;
constexpr std::int64_t kFewRounds = 2;  // of tiles on each multiprocessor: fewer are worth an estimate

using device::HopperForwardConfig, portable::group_of, portable::set_score_options;

std::int32_t padded(std::int64_t dim, std::int64_t unit) {
  return static_cast<std::int32_t>(ceil_div(dim, unit) * unit);
}

device::ElementType element_type(DType dtype) {
  return dtype == DType::fp8_e4m3 ? device::kE4m3 : dtype == DType::bf16 ? device::kBf16 : device::kF16;
}

/// In fp8 a warpgroup has one factor between product and score: heads are packed whose q has the same. Of packed
/// sequences their mean length decides: where one prefills and many decode, rows of those that decode are few.
bool packs_heads(const Problem& p, const HopperForwardConfig& c) {
  constexpr std::int64_t kFewQueries = 64;
  const std::int64_t group = group_of(p);
  const bool mean = p.layout == Layout::thd && !p.batch_invariant && p.batch_size > 0;
  const std::int64_t queries = mean ? std::min(p.seqlen_q, ceil_div(p.total_q, p.batch_size)) : p.seqlen_q;
  return group > 1 && group <= HopperForwardConfig::kRows && queries <= kFewQueries &&
         !(c.fp8() && p.q_scale == ScaleKind::head);
}

/// What the problem asks of the kernel, whatever its tiles.
HopperForwardConfig features_config(const Problem& p) {
  HopperForwardConfig c;
  c.q_type = c.k_type = c.v_type = element_type(p.dtype);
  c.out_type = element_type(operations::attention::out_dtype_of(p));
  c.head_dim = padded(p.head_dim, c.depth());
  c.head_dim_v = padded(p.head_dim_v, c.fp8() ? 16 : 8);
  set_score_options(c, p);
  c.windowed = p.window_left >= 0;
  c.sink = p.sink != SinkKind::none;
  c.pack_gqa = packs_heads(p, c);
  constexpr double kMostBoundedCap = 52.0;  // weights from 2^40 down to 2^-110
  const bool biased = p.bias != BiasKind::none;
  const bool modified = !p.score_mod.empty();
  c.bounded = c.softcap && !c.alibi && !biased && !modified && p.softcap <= kMostBoundedCap && p.dtype == DType::bf16;
  c.normal_bound = has_normal_bound(p);
  // Left padding would have boxes begin anywhere; TMA wants 16 bytes.
  c.bias_boxes = biased && p.bias_dims.key && !p.bias_unaligned && !p.leftpad_k;
  c.scales_late =
      c.bias_boxes && p.bias == BiasKind::boolean && !c.softcap && !c.alibi && !modified && p.softmax_scale > 0.0;
  return c;
}

/// A bias in boxes takes room beside each stage of K: that of other stages, then of the second Q. Where two stages find
/// none, each score loads its own.
HopperForwardConfig with_room_for_bias(HopperForwardConfig c) {
  constexpr std::int32_t kFewestStages = 2;
  const HopperForwardConfig wanted = c;
  for (; c.q_stages >= 1; --c.q_stages) {
    for (c.stages = wanted.stages; c.stages >= kFewestStages; --c.stages) {
      if (Forward::shared_bytes(c, gpu::Family::sm90) <= kSharedRoom) return c;
    }
  }
  c = wanted;
  c.bias_boxes = c.scales_late = 0;
  return c;
}

/// Whether consumer warpgroups issue products ping-pong: one's softmax runs beside another's products. A mask lets each
/// see other tiles of keys, and with ping-pong the one that is done waits for the others' last tiles; without, it goes
/// on to its next queries. Beyond 2k keys that no longer tells, but where softcap keeps the exponentials' unit busier
/// than the matrix unit. In fp8, whose products are short, waiting for a turn is a sixth of a step. A bias or dropout
/// costs 10% and more without ping-pong, a window 7% with it.
bool uses_ping_pong(const Problem& p, const HopperForwardConfig& c) {
  constexpr std::int64_t kShort = 2048;
  const std::int32_t dim = c.wider_dim();
  const bool capped = c.bounded && !c.windowed;  // by softcap, and nothing else is done to scores
  const bool biased = c.bias_type != device::kBiasNone;
  if (c.windowed && !c.fp8() && !c.dropout && !biased && (c.plain_scale || dim <= 128)) return false;
  if (c.dropout || (!c.plain_scale && !capped)) return true;
  if (c.fp8()) return dim > 128;
  const bool masked = c.ranged || !p.mask_mod.empty();
  return !masked || dim > 128 || (!capped && std::max(p.seqlen_q, p.seqlen_k) > kShort);
}

/// Scores that a function changes are compared in every tile: to have one again would take the function once more.
HopperForwardConfig with_tile(HopperForwardConfig c, const Tile& tile, const Problem& p) {
  c.waves = 4 * (tile.consumers + 1);
  c.block_n = tile.block_n;
  c.stages = tile.stages;
  c.q_stages = tile.q_stages;
  c.watch_sums = tile.watch_sums && c.q_type == device::kBf16 && p.score_mod.empty();
  c.clustered = tile.clustered;
  c.watch_weights = c.fp8() && !c.dropout && c.plain_scale;
  return c.bias_boxes ? with_room_for_bias(c) : c;
}

/// Parts leave sums in memory, which combine joins with the sink.
HopperForwardConfig in_parts(HopperForwardConfig c) {
  c.split = 1;
  c.q_stages = 1;
  c.sink = c.clustered = 0;
  return c;
}

/// The quickest of both tiles and every number of parts, or those that are asked for.
ForwardSchedule quickest(const Problem& p, const core::DeviceDescription& device, const HopperForwardConfig& features,
                         const Tile& tile, std::int64_t num_splits) {
  const Estimator estimator(p, device);
  ForwardSchedule best;
  double least = std::numeric_limits<double>::infinity();
  const auto consider = [&](const HopperForwardConfig& config, std::int64_t splits) {
    const double us = estimator.forward_us(config, splits);
    if (us < least) least = us, best = {config, splits};
  };
  for (const Tile& candidate : {tile, pair_for(tile, features)}) {
    const HopperForwardConfig config = with_tile(features, candidate, p);
    const std::int64_t most = num_splits > 0 ? num_splits : estimator.steps(config) / kFewestStepsAPart;
    if (num_splits <= 1) consider(config, 1);
    for (std::int64_t splits = std::max<std::int64_t>(num_splits, 2); splits <= std::min(most, kMostSplits); ++splits) {
      consider(in_parts(config), splits);
    }
  }
  return best;
}

/// Whether heads that begin between sectors have their first 8 columns behind the others in shared memory (3 to 15%
/// less): there are 8 columns more than whole chunks, of which boxes can leave out the first ones. Where blocks share
/// keys, each sector comes once for two, and it is slower. Boxes of pages load columns in their order.
bool turns_columns(const Problem& p, const HopperForwardConfig& c) {
  const std::int64_t chunk = box_columns(p.dtype);
  const auto has_one_more = [=](std::int64_t dim) { return dim > chunk && dim % chunk == device::kPieceColumns; };
  return !c.fp8() && !c.clustered && !c.split && !c.cached && has_one_more(p.head_dim) && has_one_more(p.head_dim_v);
}

/// Tiles come from a counter unless every one takes as long, or every block has one.
ForwardSchedule scheduled(ForwardSchedule schedule, const Problem& p, const core::DeviceDescription& device) {
  HopperForwardConfig& c = schedule.config;
  c.ping_pong = uses_ping_pong(p, c);
  c.turned_columns = turns_columns(p, c);
  c.dynamic = (c.ranged || c.lengths || skips_tiles(p, c)) && tiles_of(p, c) * schedule.splits > device.multiprocessors;
  return schedule;
}

}  // namespace

bool has_normal_bound(const Problem& p) {
  constexpr double kLeastNormal = 0x0080, kGreatestNormal = 0x7F7F;  // bits of bf16
  const double bound = p.dropout_p * 65536.0;
  return bound >= kLeastNormal && bound <= kGreatestNormal;
}

/// Attention packs heads of few queries, beside which two launches more would tell. In a window of pages the tiles that
/// are seen are few, and rows that are of no page lie in the first one.
portable::FunctionUse function_use(const Problem& p, const HopperForwardConfig& c) {
  constexpr portable::KnownTiles kNone = portable::KnownTiles::none;
  const bool few = c.pack_gqa && !c.cached, paged_window = c.windowed && c.page_size != 0;
  const portable::KnownTiles tiles = few || paged_window ? kNone : known_tiles(p);
  return {c.cached ? portable::QueryIndex::position : portable::QueryIndex::query,
          portable::knows_tiles(p, tiles) ? tiles : kNone};
}

bool skips_tiles(const Problem& p, const HopperForwardConfig& c) {
  return function_use(p, c).tiles != portable::KnownTiles::none;
}

std::int64_t queries_of_block(const Problem& p, const HopperForwardConfig& c) {
  return std::int64_t{c.consumers()} * (HopperForwardConfig::kRows / (c.pack_gqa ? group_of(p) : 1));
}

std::int64_t tiles_of(const Problem& p, const HopperForwardConfig& c) {
  const std::int64_t heads = c.pack_gqa ? p.num_heads_k : p.num_heads_q;
  return ceil_div(p.seqlen_q, queries_of_block(p, c)) * heads * p.batch_size;
}

ForwardSchedule forward_schedule(const Problem& p, const core::DeviceDescription& device, std::int64_t num_splits,
                                 std::optional<std::int64_t> page_size) {
  HopperForwardConfig features = features_config(p);
  features.cached = page_size.has_value();
  features.page_size = static_cast<std::int32_t>(page_size.value_or(0));
  const Tile& tile = tile_for(p, features);
  ForwardSchedule schedule{with_tile(features, tile, p)};
  num_splits = std::min(num_splits, kMostSplits);
  // A tile that depends on how many there are makes a row's bits depend on the batch.
  if (!p.batch_invariant && tiles_of(p, schedule.config) < kFewRounds * device.multiprocessors) {
    schedule = quickest(p, device, features, tile, num_splits);
  } else if (num_splits > 1) {
    schedule = {in_parts(schedule.config), num_splits};
  }
  return scheduled(schedule, p, device);
}

std::vector<ForwardSchedule> forward_candidates(const Problem& p, const core::DeviceDescription& device) {
  std::vector<ForwardSchedule> candidates{forward_schedule(p, device)};
  if (p.batch_invariant) return candidates;
  const auto consider = [&](const ForwardSchedule& schedule) {
    if (Forward::shared_bytes(schedule.config, gpu::Family::sm90) > kSharedRoom) return;
    add_candidate(candidates, scheduled(schedule, p, device));
  };
  const HopperForwardConfig features = features_config(p);
  for (const Tile& tile : tiles_to_try(p, features)) {
    const HopperForwardConfig config = with_tile(features, tile, p);
    consider({config, 1});
    if (tiles_of(p, config) >= kFewRounds * device.multiprocessors) continue;
    const std::int64_t most = std::min(Estimator(p, device).steps(config) / kFewestStepsAPart, kMostSplits);
    for (std::int64_t splits = 2; splits <= most; splits *= 2) consider({in_parts(config), splits});
  }
  return candidates;
}

ForwardSchedule tuned_schedule(const Problem& p, const core::DeviceDescription& device, std::string_view name) {
  return candidate_named(forward_candidates(p, device), name);
}

const std::string* tuned_name(const Problem& p, const core::DeviceDescription& device) {
  return core::find_tuned(device, kImplementationName, [&p] { return tuning_text(p); });
}

std::string tuning_text(const Problem& problem) {
  Problem any = problem;  // whatever results are wanted, and what becomes of rows beside them
  any.softmax_lse = true;
  any.clear_rest = false;
  return to_string(any);
}

std::string name_of(const ForwardSchedule& schedule) {
  const HopperForwardConfig& c = schedule.config;
  return core::concat(c.block_m(), "x", c.block_n, "/", c.stages, "/", c.q_stages, c.clustered ? "/shared keys" : "",
                      c.split ? core::concat("/", schedule.splits, " splits") : std::string());
}

std::int64_t tile_count(const device::TileOrder& order) {
  return std::int64_t{order.num_tiles} * order.num_heads * order.batch_size * order.num_splits;
}

std::string describe(const ForwardSchedule& schedule) {
  const HopperForwardConfig& c = schedule.config;
  return core::concat(c.block_m(), "x", c.block_n, " tiles, ", c.consumers(), " warpgroups, ", c.stages, " stages",
                      c.bias_boxes ? ", bias in boxes" : "", c.turned_columns ? ", columns turned" : "",
                      c.dynamic ? ", scheduled by a counter" : "", c.pack_gqa ? ", heads packed" : "",
                      c.clustered ? ", pairs of blocks that share keys" : "",
                      c.split ? core::concat(", ", schedule.splits, " splits") : std::string());
}

}  // namespace tilewise::backends::hopper
