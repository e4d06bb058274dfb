// A table of tiles, measured on an H200 (docs/hopper_forward.md), and what follows from them.
#include "backends/cuda/hopper/schedule.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "backends/cuda/hopper/candidates.hpp"
#include "backends/cuda/hopper/estimate.hpp"
#include "backends/cuda/hopper/kernels.hpp"
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

/// Longest sequence a tile is chosen for. Of packed sequences the longest depends on the batch.
std::int64_t chosen_length(const Problem& p) {
  constexpr std::int64_t kTypical = 4096;
  return p.batch_invariant && p.layout == Layout::thd ? kTypical : p.seqlen_q;
}

/// How a tile of queries and keys is cut: consumers x 64 rows, block_n keys, and how many tiles are on their way.
struct Tile {
  std::int32_t consumers, block_n, stages, q_stages;
  bool watch_sums;
  bool clustered = false;  // two blocks bring each tile of keys for both
};

constexpr Tile kDropout{2, 96, 2, 2, true};          // dropout alone: registers for its draws
constexpr Tile kDropoutNarrow{2, 128, 3, 2, true};   // to head_dim 64
constexpr Tile kDropoutWidest{2, 64, 2, 1, false};   // beyond 192
constexpr Tile kCrowded{2, 64, 4, 2, false};         // several options, or scores' own loads of a bias
constexpr Tile kCrowdedMost{2, 32, 4, 2, false};     // scores' own loads beside dropout's draws
constexpr Tile kCrowdedWide{2, 64, 2, 2, false};     // likewise, dropout and any bias beyond head_dim 128
constexpr Tile kCrowdedWidest{2, 32, 4, 1, false};   // and beyond 192, where a bias in fp32 is crowded too
constexpr Tile kWidest{2, 64, 2, 1, false};          // head_dim 256
constexpr Tile kWide192{2, 80, 2, 2, false};         // head_dim_v to 192
constexpr Tile kWide128{2, 96, 2, 2, false};         // head_dim to 192 with head_dim_v to 128
constexpr Tile kMiddle{3, 64, 4, 2, false};          // head_dim 128, and from 65 with a window, softcap or ALiBi
constexpr Tile kMiddleLong{3, 80, 3, 2, false};      // full from 16k, or with ALiBi or softcap: it spills beside masks
constexpr Tile kMiddle96{3, 80, 3, 2, true};         // head_dim to 96: a stage is as large as one of 128
constexpr Tile kMiddle80{3, 112, 2, 2, false};       // full to 80
constexpr Tile kMiddle80Causal{3, 96, 2, 2, false};  // and with a mask
constexpr Tile kBoxedBias{3, 64, 3, 1, true};        // to 128, with a bias in boxes
constexpr Tile kBoxedBool{3, 80, 3, 1, true};        // 128, full, a boolean one alone: beside masks it would spill
constexpr Tile kNarrowBias{4, 48, 5, 2, true};       // to 64, of 16 bits or booleans: more keys would spill
constexpr Tile kNarrowBiasFew{3, 64, 4, 2, true};    // where tiles of 256 queries would be a quarter empty and more
constexpr Tile kNarrowFew{2, 64, 3, 2, false};       // head_dim 64, to 128 queries
constexpr Tile kNarrowShort{4, 64, 5, 2, false};     // head_dim 64, full to 1k, causal to 4k, with a window
constexpr Tile kNarrow{3, 128, 3, 2, false};         // and the rest
constexpr Tile kNarrowLengths{3, 96, 6, 2, true};    // with lengths or packed heads, causal or from 8k
constexpr Tile kNarrowWindow{3, 64, 8, 2, true};     // with a window and lengths
constexpr Tile kNarrowModified{3, 64, 8, 2, false};  // scores that are more than a scale
constexpr Tile kNarrowSlopes{3, 96, 4, 2, false};    // ALiBi alone: in larger ones it would spill

// Where two blocks may share keys: beyond 192, and to it where rows begin between sectors.
constexpr Tile kWidestShared{2, 64, 2, 1, false, true};    // head_dim 200 to 256
constexpr Tile kWide192Shared{2, 80, 2, 2, false, true};   // 136 to 184
constexpr Tile kMiddle88Shared{3, 96, 3, 1, true, true};   // 88
constexpr Tile kMiddle72Shared{3, 112, 3, 1, true, true};  // 72

// Where tiles of queries are few.
constexpr Tile kMiddlePair{2, 128, 2, 2, true};    // to head_dim 128
constexpr Tile kNarrowPair{2, 128, 4, 2, true};    // to 64
constexpr Tile kWindowPair{2, 128, 2, 2, false};   // from 65 to 128, with a window
constexpr Tile kModifiedPair{2, 64, 4, 2, false};  // to 128, scores that are more than a scale, or a window at 64

// fp8: keys in multiples of 32, the depth of a product. V takes room twice, as it comes and transposed.
constexpr Tile kFp8Narrow{3, 128, 3, 2, false};  // head_dim to 64
constexpr Tile kFp8Middle{3, 96, 3, 2, false};   // to 128
constexpr Tile kFp8Crowded{2, 64, 3, 2, false};  // to 128, with scores that are more than a scale
constexpr Tile kFp8Wide{2, 96, 2, 1, false};     // to 256
constexpr Tile kFp8WideCrowded{2, 64, 2, 1, false};
constexpr Tile kFp8WidestCrowded{2, 32, 3, 1, false};  // with several options

/// What is done to scores and weights beside their scale.
int options_of(const HopperForwardConfig& c) {
  return c.softcap + c.alibi + c.dropout + (c.bias_type != device::kBiasNone);
}

const Tile& fp8_tile_for(const HopperForwardConfig& c) {
  const std::int32_t dim = std::max(c.head_dim, c.head_dim_v);
  const bool crowded = !c.plain_scale || c.dropout;
  if (dim > 128 && options_of(c) > 1) return kFp8WidestCrowded;
  if (dim > 128) return crowded ? kFp8WideCrowded : kFp8Wide;
  if (crowded) return kFp8Crowded;
  return dim > 64 ? kFp8Middle : kFp8Narrow;
}

/// Whether two blocks, each with such a tile of queries, are to bring each tile of keys for both. All queries see all
/// keys, of which there are enough to be worth it, and where pairs of tiles end behind the last query no more than a
/// 16th of their rows is idle: a warpgroup without rows walks at the pace of the other block.
bool shares_keys(const Problem& p, const HopperForwardConfig& c, const Tile& tile) {
  constexpr std::int64_t kFewestKeys = 1024, kMostIdle = 16;
  if (!c.plain_scale || c.dropout || c.ranged || c.lengths || c.pack_gqa || p.seqlen_k < kFewestKeys) return false;
  const std::int64_t pair = 2 * tile.consumers * HopperForwardConfig::kRows;
  const std::int64_t rows = ceil_div(p.seqlen_q, pair) * pair;
  return kMostIdle * (rows - p.seqlen_q) <= rows;
}
/// A row of an odd number of 16 bytes begins between sectors in every other head: it costs L2 one of them more.
bool begins_between_sectors(const Problem& p) {
  constexpr std::int64_t kSectorColumns = 16;
  return p.head_dim % kSectorColumns != 0 || p.head_dim_v % kSectorColumns != 0;
}
/// Where it takes two blocks; null where each is better alone.
const Tile* shared_tile_for(const Problem& p, const HopperForwardConfig& c) {
  const std::int64_t dim = std::max(p.head_dim, p.head_dim_v);
  const Tile* tile = nullptr;
  if (dim > 192) {
    tile = &kWidestShared;
  } else if (begins_between_sectors(p)) {
    const bool bf16 = c.q_type == device::kBf16;
    if (dim > 128 && c.head_dim_v > 128) tile = &kWide192Shared;
    if (dim == 88 && bf16) tile = &kMiddle88Shared;
    if (dim == 72 && bf16) tile = &kMiddle72Shared;
  }
  return tile != nullptr && shares_keys(p, c, *tile) ? tile : nullptr;
}

/// Whether tiles of one kind cover a quarter less of what all queries and all keys are than those of another: few of
/// either are, and their ends tell. Of 16,384 tokens on an H200 256 queries of 128 columns take 10% less in tiles of
/// 128 than of 192, of 96 columns 21%, of 72 11%, 197 of 128 12%; at 64 columns 257, 384 and 576 take 12, 10 and 12%
/// less in 192x96 than in 256x64. A tenth less (320) is no gain.
bool covers_less(const Problem& p, const HopperForwardConfig& c, const Tile& tile, const Tile& than) {
  const auto covered = [&p](const Tile& t) {
    const std::int64_t rows = std::int64_t{t.consumers} * HopperForwardConfig::kRows;
    return ceil_div(p.seqlen_q, rows) * rows * ceil_div(p.seqlen_k, std::int64_t{t.block_n}) * t.block_n;
  };
  return !c.ranged && !c.lengths && !c.pack_gqa && 4 * covered(tile) <= 3 * covered(than);
}

/// Few queries to head_dim 64: of 16,384 tokens in 12 heads on an H100 128, 100, 96, 77 and 50 take 3, 4, 4, 7 and 7%
/// less in tiles of 128 than of 256, 128 under a causal mask 7%, with ALiBi 12% less than in tiles of 192.
bool has_narrow_few(const Problem& p, const HopperForwardConfig& c) {
  constexpr std::int64_t kFew = 128;
  return p.seqlen_q <= kFew && !c.lengths && !c.pack_gqa && !c.windowed;
}

/// With a bias to head_dim 64: 128, 320 and 384 queries take 9, 11 and 9% less in tiles of 192 rows than of 256, with a
/// key padding mask 320 and 384 13 and 9% (H100).
const Tile& narrow_bias_tile_for(const Problem& p, const HopperForwardConfig& c) {
  return covers_less(p, c, kNarrowBiasFew, kNarrowBias) ? kNarrowBiasFew : kNarrowBias;
}

/// To head_dim 64, for scores that are no more than scaled.
const Tile& narrow_tile_for(const Problem& p, const HopperForwardConfig& c, std::int64_t length) {
  constexpr std::int64_t kOneTile = 192;  // of 256 rows it takes no longer
  if (!c.lengths && !c.pack_gqa) {
    const Tile& tile = c.windowed || length <= (c.ranged ? 4096 : 1024) ? kNarrowShort : kNarrow;
    return p.seqlen_q > kOneTile && covers_less(p, c, kNarrowLengths, tile) ? kNarrowLengths : tile;
  }
  if (c.windowed) return kNarrowWindow;
  return c.ranged || length >= 8192 ? kNarrowLengths : kNarrow;
}

/// From 65 to 128, likewise.
const Tile& middle_tile_for(const Problem& p, const HopperForwardConfig& c, std::int64_t length) {
  const std::int32_t dim = std::max(c.head_dim, c.head_dim_v);
  const Tile* tile = c.ranged ? &kMiddle80Causal : &kMiddle80;
  if (dim > 80) tile = &kMiddle96;
  if (dim > 96) tile = !c.ranged && length >= 16384 ? &kMiddleLong : &kMiddle;
  return covers_less(p, c, kMiddlePair, *tile) ? kMiddlePair : *tile;
}

const Tile& tile_for(const Problem& p, const HopperForwardConfig& c) {
  if (c.fp8()) return fp8_tile_for(c);
  if (const Tile* shared = shared_tile_for(p, c)) return *shared;
  const std::int32_t dim = std::max(c.head_dim, c.head_dim_v);
  const std::int64_t length = chosen_length(p);
  const bool loads_bias = c.bias_type != device::kBiasNone && !c.bias_boxes;
  const bool crowded = c.dropout || loads_bias || options_of(c) > 1;
  const bool plain = c.plain_scale && !c.dropout, plain_but_dropped = c.plain_scale && c.dropout;
  if (dim > 192 && plain_but_dropped) return kDropoutWidest;
  if (dim > 192) return crowded || c.bias_type == device::kBiasF32 ? kCrowdedWidest : kWidest;
  if (dim > 128) return crowded || c.bias_boxes ? kCrowdedWide : c.head_dim_v <= 128 ? kWide128 : kWide192;
  if (c.dropout && loads_bias) return kCrowdedMost;
  if (crowded && plain_but_dropped) return dim > 64 ? kDropout : kDropoutNarrow;
  if (crowded) return kCrowded;
  if (c.scales_late && dim > 96 && !c.ranged && !c.lengths) return kBoxedBool;
  // In fp32 narrower tiles take 8% longer, beside a window 5%, and beside lengths they spill.
  const bool narrow_bias = dim <= 64 && !c.windowed && !c.lengths && c.bias_type != device::kBiasF32;
  if (c.bias_boxes) return narrow_bias ? narrow_bias_tile_for(p, c) : kBoxedBias;
  if (dim <= 64 && (plain || c.alibi) && has_narrow_few(p, c)) return kNarrowFew;
  if (c.alibi && dim <= 64) return kNarrowSlopes;
  if ((c.alibi || c.bounded) && dim > 64 && !c.ranged && !c.lengths) return kMiddleLong;
  if (dim <= 64) return plain ? narrow_tile_for(p, c, length) : kNarrowModified;
  return !plain || c.windowed ? kMiddle : middle_tile_for(p, c, length);
}

/// Two computing warpgroups where the table has more: more tiles for multiprocessors that have none, and a full block
/// of 128 rows where three warpgroups would leave a third of theirs empty.
Tile pair_for(const Tile& tile, const HopperForwardConfig& c) {
  if (tile.consumers <= 2) return tile;
  Tile pair = tile;
  pair.consumers = 2;
  if (c.fp8()) return pair;
  const bool narrow = std::max(c.head_dim, c.head_dim_v) <= 64;
  if (!c.plain_scale || c.dropout) return kModifiedPair;
  if (c.windowed) return narrow ? kModifiedPair : kWindowPair;
  return narrow ? kNarrowPair : kMiddlePair;
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
  c.bounded = c.softcap && !c.alibi && !biased && p.softcap <= kMostBoundedCap && p.dtype == DType::bf16;
  c.normal_bound = has_normal_bound(p);
  // Left padding would have boxes begin anywhere; the copy engine wants 16 bytes.
  c.bias_boxes = biased && p.bias_dims.key && !p.bias_unaligned && !p.leftpad_k;
  c.scales_late = c.bias_boxes && p.bias == BiasKind::boolean && !c.softcap && !c.alibi && p.softmax_scale > 0.0;
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

/// Whether computing warpgroups take turns, which hold one's softmax against another's products. A mask lets each see
/// other tiles of keys, and with turns the one that is done waits for the others' last tiles; without, it goes on to
/// its next queries. Beyond 2k keys that no longer tells, but where softcap keeps the exponentials' unit busier than
/// the matrix unit. In fp8, whose products are short, a turn is what a sixth of a step waits for. A bias or dropout
/// costs 10% and more without turns. Beside a window of 1,024 softcap and ALiBi take 7% less without (64 columns 10 and
/// 4%), of 4,096 1 to 2%; at 256 columns softcap 3% more.
bool takes_turns(const Problem& p, const HopperForwardConfig& c) {
  constexpr std::int64_t kShort = 2048;
  const std::int32_t dim = std::max(c.head_dim, c.head_dim_v);
  const bool capped = c.bounded && !c.windowed;  // by softcap, and nothing else is done to scores
  const bool biased = c.bias_type != device::kBiasNone;
  if (c.windowed && !c.fp8() && !c.dropout && !biased && (c.plain_scale || dim <= 128)) return false;
  if (c.dropout || (!c.plain_scale && !capped)) return true;
  if (c.fp8()) return dim > 128;
  return !c.ranged || dim > 128 || (!capped && std::max(p.seqlen_q, p.seqlen_k) > kShort);
}

HopperForwardConfig with_tile(HopperForwardConfig c, const Tile& tile) {
  c.waves = 4 * (tile.consumers + 1);
  c.block_n = tile.block_n;
  c.stages = tile.stages;
  c.q_stages = tile.q_stages;
  c.watch_sums = tile.watch_sums && c.q_type == device::kBf16;
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
    const HopperForwardConfig config = with_tile(features, candidate);
    const std::int64_t most = num_splits > 0 ? num_splits : estimator.steps(config) / kFewestStepsAPart;
    if (num_splits <= 1) consider(config, 1);
    for (std::int64_t splits = std::max<std::int64_t>(num_splits, 2); splits <= std::min(most, kMostSplits); ++splits) {
      consider(in_parts(config), splits);
    }
  }
  return best;
}

/// The table's tile; and what else may be quicker: pairs of warpgroups, blocks that share no keys and, where scores are
/// no more than scaled, the tiles of neighbouring head dims.
std::vector<Tile> tiles_to_try(const Problem& p, const HopperForwardConfig& c) {
  Tile alone = tile_for(p, c);
  alone.clustered = false;
  std::vector<Tile> tiles{tile_for(p, c), alone, pair_for(alone, c)};
  const std::int32_t dim = std::max(c.head_dim, c.head_dim_v);
  if (c.fp8() || !c.plain_scale || c.dropout || dim > 128) return tiles;
  if (dim <= 64) {
    tiles.insert(tiles.end(), {kNarrow, kNarrowLengths, kNarrowPair});
    if (!c.lengths && !c.pack_gqa) tiles.push_back(kNarrowShort);
  } else {
    tiles.insert(tiles.end(), {kMiddle, kMiddleLong, kMiddlePair, kWide128});
    if (dim <= 96) tiles.insert(tiles.end(), {kMiddle96, kMiddle80, kMiddle80Causal});
  }
  return tiles;
}

/// Tiles come from a counter unless every one takes as long, or every block has one.
ForwardSchedule dealt(ForwardSchedule schedule, const Problem& p, const core::DeviceDescription& device) {
  HopperForwardConfig& c = schedule.config;
  c.turns = takes_turns(p, c);
  c.dynamic = (c.ranged || c.lengths) && tiles_of(p, c) * schedule.splits > device.multiprocessors;
  return schedule;
}

}  // namespace

bool has_normal_bound(const Problem& p) {
  constexpr double kLeastNormal = 0x0080, kGreatestNormal = 0x7F7F;  // bits of bf16
  const double bound = p.dropout_p * 65536.0;
  return bound >= kLeastNormal && bound <= kGreatestNormal;
}

std::int64_t queries_of_block(const Problem& p, const HopperForwardConfig& c) {
  return std::int64_t{c.consumers()} * (HopperForwardConfig::kRows / (c.pack_gqa ? group_of(p) : 1));
}

std::int64_t tiles_of(const Problem& p, const HopperForwardConfig& c) {
  const std::int64_t heads = c.pack_gqa ? p.num_heads_k : p.num_heads_q;
  return ceil_div(p.seqlen_q, queries_of_block(p, c)) * heads * p.batch_size;
}

ForwardSchedule forward_schedule(const Problem& p, const core::DeviceDescription& device, std::int64_t num_splits) {
  const HopperForwardConfig features = features_config(p);
  const Tile& tile = tile_for(p, features);
  ForwardSchedule schedule{with_tile(features, tile)};
  num_splits = std::min(num_splits, kMostSplits);
  // A tile that depends on how many there are makes a row's bits depend on the batch.
  if (!p.batch_invariant && tiles_of(p, schedule.config) < kFewRounds * device.multiprocessors) {
    schedule = quickest(p, device, features, tile, num_splits);
  } else if (num_splits > 1) {
    schedule = {in_parts(schedule.config), num_splits};
  }
  return dealt(schedule, p, device);
}

std::vector<ForwardSchedule> forward_candidates(const Problem& p, const core::DeviceDescription& device) {
  std::vector<ForwardSchedule> candidates{forward_schedule(p, device)};
  if (p.batch_invariant) return candidates;
  const auto consider = [&](const ForwardSchedule& schedule) {
    if (Forward::shared_bytes(schedule.config, gpu::Family::sm90) > kSharedRoom) return;
    add_candidate(candidates, dealt(schedule, p, device));
  };
  const HopperForwardConfig features = features_config(p);
  for (const Tile& tile : tiles_to_try(p, features)) {
    const HopperForwardConfig config = with_tile(features, tile);
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
                      c.bias_boxes ? ", bias in boxes" : "", c.dynamic ? ", dealt by a counter" : "",
                      c.pack_gqa ? ", heads packed" : "", c.clustered ? ", pairs of blocks that share keys" : "",
                      c.split ? core::concat(", ", schedule.splits, " splits") : std::string());
}

}  // namespace tilewise::backends::hopper
