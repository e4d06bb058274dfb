// See bwd_config.hpp.
#include "backends/cuda/hopper/bwd_config.hpp"

#include <algorithm>
#include <limits>

#include "backends/cuda/hopper/bwd_estimate.hpp"
#include "backends/cuda/hopper/bwd_schedule.hpp"
#include "backends/cuda/hopper/candidates.hpp"
#include "backends/cuda/hopper/kernels.hpp"
#include "backends/cuda/hopper/schedule.hpp"
#include "backends/portable/attention/functions.hpp"
#include "backends/portable/attention/schedule.hpp"
#include "core/ceil_div.hpp"
#include "core/message.hpp"

namespace tilewise::backends::hopper {
namespace {

using core::ceil_div, core::concat;
using device::HopperBwdConfig;

constexpr std::int32_t kNarrowBwd = 64;  // columns, and queries of a tile that registers have room for

bool is_biased(const HopperBwdConfig& c) { return c.bias_type != device::kBiasNone; }

/// A bias in boxes takes the room of a third stage. Where two find none, each score loads its own.
HopperBwdConfig with_room_for_bias(HopperBwdConfig c) {
  const HopperBwdConfig wanted = c;
  for (; c.stages >= 2; --c.stages) {
    HopperBwdConfig by_counter = c;  // which may hold two tiles of K
    by_counter.persistent = 1;
    if (Bwd::shared_bytes(by_counter, gpu::Family::sm90) <= kSharedRoom) return c;
  }
  c = wanted;
  c.bias_boxes = 0;
  return c;
}

/// What the problem alone decides: neither the order of dq's sums nor the scheduler of tiles of keys.
HopperBwdConfig features_config(const Problem& p) {
  constexpr std::int32_t kWide = 128;
  HopperBwdConfig c;
  c.q_type = c.k_type = c.v_type = c.out_type = p.dtype == DType::bf16 ? device::kBf16 : device::kF16;
  c.head_dim = portable::padded_dim(p.head_dim);
  // Products for dq of 64, 64 and 32 columns find no registers beside each other, says ptxas (C7511), and each waits
  // for the one before. Shared memory holds 192 columns all the same.
  if (c.head_dim == 160) c.head_dim = 192;
  c.head_dim_v = portable::padded_dim(p.head_dim_v);
  c.exact_dims = c.head_dim == p.head_dim && c.head_dim_v == p.head_dim_v;
  portable::set_score_options(c, p);
  c.windowed = p.window_left >= 0;
  c.plain_scale = p.score_mod.empty();  // a negative scale is one too: no maximum is looked for
  c.shares_keys = c.wider_dim() > kWide;
  c.normal_bound = has_normal_bound(p);
  const bool biased = p.bias != BiasKind::none;
  c.block_m = c.wider_dim() <= kNarrowBwd && !biased && c.plain_scale ? 128 : 64;
  c.partial_rows = c.lengths || p.seqlen_q % c.block_m != 0;
  // Of K, V and three stages, as wide as boxes are, shared memory has room to 192.
  const auto boxed = [](std::int32_t dim) { return ceil_div(dim, 64) * 64; };
  c.stages = c.block_m > 64 || boxed(c.head_dim) + boxed(c.head_dim_v) > 2 * 192 ? 2 : 3;
  // Left padding would have boxes begin anywhere; TMA wants 16 bytes.
  c.bias_boxes = biased && p.bias_dims.key && !p.bias_unaligned && !p.leftpad_k;
  return c;
}

/// Whether a block may work on one tile of keys after the other. Of wide heads with dropout the warps that load tiles
/// draw too. The preprocess clears the scheduler's counter, and without queries there is none.
bool may_be_persistent(const Problem& p, const HopperBwdConfig& c) {
  return (!c.ordered || c.lone_loader()) && !(c.shares_keys && c.dropout) && (!is_biased(c) || c.bias_boxes) &&
         p.seqlen_q > 0;
}
/// With persistent blocks, if they may be. A group's heads would be one loop more around the steps, in which ptxas
/// keeps nothing in uniform registers, so a block gets a tile of keys once for each query head.
HopperBwdConfig persistent(const Problem& p, HopperBwdConfig c) {
  c.persistent = may_be_persistent(p, c);
  c.grouped = c.persistent && portable::group_of(p) > 1;
  return c;
}

/// Whether persistent blocks are quicker than a block for each tile: nearly everywhere, by up to 6%. Not for dropout
/// beyond 96 columns, for wide ordered heads under a mask (10% slower), for most biases beyond 64 columns, nor for
/// packed or dropped groups without an order. Dropout or a bias beside other options has not been timed.
bool persistence_pays(const Problem& p, const HopperBwdConfig& c) {
  constexpr std::int32_t kMiddle = 96;
  if (portable::group_of(p) > 1 && !c.ordered && (c.lengths || c.dropout)) return false;
  if (c.ordered && c.shares_keys && c.ranged) return false;
  const bool modified = c.dropout || is_biased(c);
  if (modified && c.softcap + c.alibi + c.dropout + is_biased(c) > 1) return false;
  if (c.dropout) return c.wider_dim() <= kMiddle;
  if (is_biased(c) && c.wider_dim() > kNarrowBwd) {
    return c.bias_type != device::kBiasF32 && (c.ordered || !c.ranged || c.shares_keys);
  }
  return true;
}

/// Whether blocks may round dq themselves: where it is known when a query's sums are complete, by their order, or by
/// the number of tiles of keys that every query sees.
bool may_round(const Problem& p, const HopperBwdConfig& c) {
  return p.dq && c.persistent && each_query_sees_a_key(p, c) && (c.ordered || !c.ranged);
}

/// Whether that is quicker than a launch. Without an order a head's tiles of keys have to be counted as they are done,
/// once their sums have arrived: 2 to 4% less in long sequences, but 5% more in short ones.
bool rounding_pays(const Problem& p, const HopperBwdConfig& c, const core::DeviceDescription& device) {
  constexpr std::int64_t kFewestTiles = 1024, kFewestQueries = 2048;
  return c.ordered ||
         (key_blocks(p, c, device) >= kFewestTiles && p.seqlen_q >= kFewestQueries / (c.shares_keys ? 2 : 1));
}

/// Whether the last heads' tiles of keys may begin with the first ones (see TileOrder), so that the longest begin and
/// the last tiles of all are short. Which heads these are the batch decides. A bias in f16 would spill 68 bytes instead
/// of 44.
bool may_go_both_ways(const Problem& p, const HopperBwdConfig& c) {
  const bool fits = c.bias_type == device::kBiasNone || c.q_type == device::kBf16 || c.wider_dim() <= kNarrowBwd;
  return c.carried() && c.persistent && c.ranged && !p.batch_invariant && fits;
}

/// Whether that is quicker: by 3 to 7%, unless blocks that work on a head together wait for each other once for each of
/// many query heads (48% slower for 71 heads on one). A window's tiles of keys are apart by themselves. An H100's
/// memory is too slow for groups of short sequences.
bool both_ways_pay(const Problem& p, const HopperBwdConfig& c, const core::DeviceDescription& device) {
  constexpr std::int64_t kFewKeys = 512, kMoreKeys = 1024, kFewHeads = 8, kManyTiles = 512;
  const std::int64_t few_keys = c.block_m > kNarrowBwd ? kMoreKeys : kFewKeys;
  if (!c.grouped || looks_near(p, c)) return true;
  const std::int64_t shares = head_shares(p, c, device), heads_a_share = portable::group_of(p) / shares;
  const bool waits_for_memory = !has_quick_memory(device) && shares > 1 && tiles_of_keys(p, c) >= kManyTiles;
  if (waits_for_memory && (c.own_dq || p.seqlen_k <= kMoreKeys)) return false;
  return heads_a_share <= 2 || (p.seqlen_k <= few_keys && heads_a_share <= kFewHeads);
}

/// Whether the last tile of keys that adds to a tile of queries may round it. Of sequences whose lengths the device
/// reads some queries may see no key: the preprocess clears their dq, and knows them by a log-sum-exp of -infinity,
/// which a sink would make finite.
bool may_round_last(const Problem& p, const HopperBwdConfig& c) {
  if (portable::has_functions(p)) return false;
  const bool known = c.lengths ? p.sink == SinkKind::none : each_query_sees_a_key(p, c);
  return p.dq && c.persistent && c.carried() && known;
}

/// The same where the warps that multiply dQ beside dk and dv wait themselves for what comes from memory, so that it
/// takes as many tiles of keys as keep neighbours apart: 24% less at 256 causal keys, but 13% more in 4,096 tokens of
/// 1k.
bool own_last_rounding_pays(const Problem& p, const HopperBwdConfig& c) {
  constexpr std::int64_t kManyTiles = 1536, kManyOfGroups = 256, kFewKeys = 512;
  if (c.both_ways) return true;
  const std::int64_t tiles = tiles_of_keys(p, c);
  if (!c.windowed && p.seqlen_k > 2 * kFewKeys) return false;
  if (c.grouped && (!c.ranged || c.windowed || tiles < kManyOfGroups)) return false;
  const bool short_ones = p.seqlen_k <= kFewKeys && !c.windowed && !c.grouped;
  return short_ones || tiles * portable::group_of(p) >= kManyTiles;
}

/// Whether that is quicker than blocks without tiles that do. What has been added so far comes from memory then, which
/// takes a little longer than a step; and but for a window the first tile of keys is the last one of all queries, for
/// which all others wait in the end. So short sequences gain (17% at 512 causal keys), and in an order both ways all
/// do.
bool last_rounding_pays(const Problem& p, const HopperBwdConfig& c) {
  if (c.own_dq) return own_last_rounding_pays(p, c);
  return c.both_ways || c.windowed || p.seqlen_k <= (c.block_m > kNarrowBwd ? 2048 : 1024);
}

/// With whatever of this is quicker.
HopperBwdConfig with_ways_and_rounding(const Problem& p, HopperBwdConfig c, const core::DeviceDescription& device) {
  c.both_ways = may_go_both_ways(p, c) && both_ways_pay(p, c, device);
  c.last_rounds = may_round_last(p, c) && last_rounding_pays(p, c);
  c.rounds = !c.last_rounds && may_round(p, c) && rounding_pays(p, c, device);
  if (c.rounds) c.both_ways = 0;  // blocks that do know one way
  c.late_preprocess = has_late_preprocess(p, c, device);
  return c;
}

HopperBwdConfig with_order(HopperBwdConfig c, bool ordered) {
  c.ordered = ordered;
  if (c.bias_boxes) c = with_room_for_bias(c);
  c.waves = 4 * c.warpgroups();
  return c;
}

BwdSchedule in_parts(HopperBwdConfig c, std::int64_t splits) {
  c.split = splits > 1;
  if (c.split) c.persistent = c.grouped = c.both_ways = c.rounds = c.last_rounds = c.late_preprocess = 0;
  return {c, splits};
}

/// The keys up to which a fixed order of dq's sums is quicker than none: the first sums are stored and the last ones
/// rounded, so that no launch clears or rounds dq. With few tiles of keys that is worth more than waiting for turns
/// costs: 10% at 512 causal keys of 128 columns, nothing at 16k. Softcap leaves couriers time, so that all lengths
/// gain.
std::int64_t most_keys_in_order(const Problem& p, const HopperBwdConfig& c) {
  constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
  const bool biased = is_biased(c);
  if (c.shares_keys) {  // 420 us for 441 at 256, none at 192
    return c.head_dim > 192 && c.ranged && !c.windowed && !c.softcap && !biased ? 512 : 0;
  }
  if (c.own_dq) return looks_near(p, c) ? kAny : c.ranged ? 2048 : 768;
  if (biased) return c.both_ways ? 8192 : c.ranged && c.wider_dim() <= kNarrowBwd ? 2048 : 1024;
  if (c.block_m > kNarrowBwd) return c.windowed ? 2048 : c.ranged ? 4096 : 1024;
  return c.softcap || looks_near(p, c) ? kAny : c.ranged ? 8192 : 2048;
}

/// The same for groups of heads, whose dk and dv are added up in memory where tiles of keys are to be short (see
/// head_shares()): 28% less at 512 causal keys, 16 heads on 4.
std::int64_t most_grouped_keys_in_order(const Problem& p, const HopperBwdConfig& c,
                                        const core::DeviceDescription& device) {
  constexpr std::int64_t kManyHeads = 8, kFewTiles = 256, kManyTiles = 1024;
  if (c.shares_keys || is_biased(c)) return 0;
  if (c.own_dq) return c.ranged ? 1024 : 512;
  if (looks_near(p, c)) return c.block_m > kNarrowBwd ? 2048 : std::numeric_limits<std::int64_t>::max();
  if (!c.ranged) return 1024;
  if (tiles_of_keys(p, c) < kFewTiles) return 4096;
  if (c.block_m > kNarrowBwd) return 1024;
  const bool many = tiles_of_keys(p, c) >= kManyTiles && has_quick_memory(device);
  const bool every_head = head_shares(p, c, device) == portable::group_of(p) && !many;
  return (every_head || portable::group_of(p) >= kManyHeads) && !c.softcap ? 4096 : 2048;
}

/// The heads of a batch from which on the order is quicker: blocks wait for each other, so that neighbours of a head
/// need others between them, and fewer heads come in parts. 32 heads of 512 causal keys gain 12%, 32 of 2k one way lose
/// 8%.
std::int64_t fewest_heads_in_order(const Problem& p, const HopperBwdConfig& c) {
  constexpr std::int64_t kFewest = 32, kFew = 64, kMore = 128, kMany = 256;
  if (c.shares_keys) return kMany;
  if (c.own_dq) return c.both_ways ? kFewest : c.ranged && p.seqlen_k <= 512 ? kFew : kMore;
  if (c.block_m > kNarrowBwd) return c.ranged && p.seqlen_k <= 1024 ? kFew : kMany;
  if (p.seqlen_k <= 512) return c.ranged ? kFewest : kMore;
  return c.ranged ? kFew : kMany;
}

/// Whether fewer heads have tiles enough all the same. Both ways it takes two tiles for a multiprocessor, fewer in
/// short sequences: 8 heads of causal 4k gain 11%, 8 of 2k, which would come in parts, lose half.
bool has_tiles_for_order(const Problem& p, const HopperBwdConfig& c, const core::DeviceDescription& device) {
  constexpr std::int64_t kMany = 1024, kManyOfWindow = 512, kManyNarrow = 4096;
  constexpr std::int64_t kFewBothWays = 96, kMoreBothWays = 256, kShortKeys = 1024;
  if (c.shares_keys) return false;
  if (c.both_ways && !c.own_dq) {
    return key_blocks(p, c, device) >= (p.seqlen_k <= kShortKeys ? kFewBothWays : kMoreBothWays);
  }
  if (c.own_dq) return c.windowed && key_blocks(p, c, device) >= kManyOfWindow;
  if (c.block_m > kNarrowBwd) return c.ranged && !c.windowed && key_blocks(p, c, device) >= kManyNarrow;
  if (c.ranged && !c.windowed && !c.softcap) return false;
  return key_blocks(p, c, device) >= (c.windowed && !c.softcap ? kManyOfWindow : kMany);
}

/// Whether the order is quicker though nobody asks for it.
bool order_pays(const Problem& p, const HopperBwdConfig& unordered, const core::DeviceDescription& device) {
  if (portable::has_functions(p)) return false;  // tiles that mask_mod hides would be visited
  const HopperBwdConfig c = with_ways_and_rounding(p, persistent(p, with_order(unordered, true)), device);
  if (!c.persistent || !(c.shares_keys || c.own_dq || persistence_pays(p, c))) return false;
  const bool complete = c.lengths ? c.last_rounds != 0 : each_query_sees_a_key(p, c);
  if (p.seqlen_q != p.seqlen_k || !complete) return false;
  if (p.seqlen_k > (c.grouped ? most_grouped_keys_in_order(p, c, device) : most_keys_in_order(p, c))) return false;
  return p.num_heads_q * p.batch_size >= fewest_heads_in_order(p, c) || has_tiles_for_order(p, c, device);
}

/// Whether the consumer warpgroups may multiply dQ too, with 64 keys each, for wide heads: dk and dv of 192 and 128
/// columns leave them registers for masks, and for nothing else that is done to scores.
bool may_own_dq(const Problem& p, const HopperBwdConfig& c) {
  constexpr std::int32_t kWide = 192, kNarrower = 128;
  const bool plain = !c.softcap && !c.alibi && !c.dropout && !is_biased(c) && !portable::has_functions(p);
  return c.head_dim == kWide && c.head_dim_v <= kNarrower && plain && may_be_persistent(p, c);
}

HopperBwdConfig with_own_dq(const Problem& p, HopperBwdConfig c, const core::DeviceDescription& device) {
  c.shares_keys = 0;
  c.own_dq = 1;
  c.stages = 2;
  c = persistent(p, c);
  c.waves = 4 * c.warpgroups();
  return with_ways_and_rounding(p, c, device);
}

/// With an order where that is quicker, too.
HopperBwdConfig own_dq_config(const Problem& p, const HopperBwdConfig& usual, const core::DeviceDescription& device) {
  const HopperBwdConfig own = with_own_dq(p, usual, device);
  const bool orders = p.dq && !own.ordered && order_pays(p, own, device);
  return orders ? with_own_dq(p, with_order(usual, true), device) : own;
}

bool asks_for_order(const Problem& p) { return p.dq && (p.deterministic || p.batch_invariant); }

/// With dQ by a warpgroup of its own.
HopperBwdConfig usual_config(const Problem& p, const core::DeviceDescription& device) {
  const HopperBwdConfig features = features_config(p);
  HopperBwdConfig c = with_order(features, asks_for_order(p) || (p.dq && order_pays(p, features, device)));
  if (persistence_pays(p, c)) c = persistent(p, c);
  return with_ways_and_rounding(p, c, device);
}

}  // namespace

HopperBwdConfig bwd_config(const Problem& p, const core::DeviceDescription& device) {
  const HopperBwdConfig c = usual_config(p, device);
  return may_own_dq(p, c) ? own_dq_config(p, c, device) : c;
}

/// Consumers that multiply dQ themselves take 20 to 36% less time than blocks of 64 keys from 512 keys on, but have no
/// parts.
BwdSchedule bwd_schedule(const Problem& p, const core::DeviceDescription& device) {
  const HopperBwdConfig usual = usual_config(p, device);
  const BwdSchedule schedule = in_parts(usual, query_parts(p, usual, device));
  if (!may_own_dq(p, usual)) return schedule;
  const BwdSchedule whole{own_dq_config(p, usual, device), 1};
  const auto us = [&](const BwdSchedule& s) { return backward_us(p, s.config, s.splits, device); };
  return schedule.splits > 1 && us(schedule) < us(whole) ? schedule : whole;
}

std::vector<BwdSchedule> bwd_candidates(const Problem& p, const core::DeviceDescription& device) {
  constexpr std::int64_t kFewRounds = 4, kMostParts = 8;
  std::vector<BwdSchedule> candidates{bwd_schedule(p, device)};
  if (p.batch_invariant) return candidates;
  const auto consider = [&](const BwdSchedule& schedule) {
    if (Bwd::shared_bytes(schedule.config, gpu::Family::sm90) > kSharedRoom) return;
    add_candidate(candidates, schedule);
  };
  const HopperBwdConfig features = features_config(p);
  for (const bool ordered : {false, true}) {
    if (ordered ? !p.dq : asks_for_order(p)) continue;
    const HopperBwdConfig c = with_order(features, ordered);
    const HopperBwdConfig by_counter = persistent(p, c);
    consider({c, 1});
    const auto consider_rounding = [&](HopperBwdConfig rounded) {
      rounded.both_ways = rounded.rounds = rounded.last_rounds = 0;
      consider({rounded, 1});
      rounded.rounds = may_round(p, rounded);
      consider({rounded, 1});
      rounded.rounds = 0;
      rounded.last_rounds = may_round_last(p, rounded);
      consider({rounded, 1});
      rounded.both_ways = may_go_both_ways(p, rounded);
      consider({rounded, 1});
    };
    consider_rounding(by_counter);
    if (may_own_dq(p, c)) consider_rounding(with_own_dq(p, c, device));
    if (key_blocks(p, c, device) >= kFewRounds * device.multiprocessors) continue;
    const std::int64_t tiles = ceil_div(p.seqlen_q, c.block_m);
    for (std::int64_t splits = 2; splits <= std::min(tiles, kMostParts); splits *= 2) consider(in_parts(c, splits));
  }
  return candidates;
}

BwdSchedule tuned_bwd_schedule(const Problem& p, const core::DeviceDescription& device, std::string_view name) {
  return candidate_named(bwd_candidates(p, device), name);
}

std::string name_of(const BwdSchedule& schedule) {
  const HopperBwdConfig& c = schedule.config;
  return concat(c.block_n(), "x", c.block_m, "/", c.stages, c.ordered ? "/fixed order" : "",
                c.both_ways ? "/both ways" : "", c.persistent ? "/persistent" : "", c.rounds ? "/rounds" : "",
                c.last_rounds ? "/last rounds" : "", c.split ? concat("/", schedule.splits, " splits") : std::string());
}

std::string describe(const BwdSchedule& schedule) {
  const HopperBwdConfig& c = schedule.config;
  return concat(Bwd::kName, " ", c.block_n(), "x", c.block_m, " tiles, ", c.kConsumers, " warpgroups",
                c.own_dq ? " that multiply dq too, " : ", ", c.stages, " stages",
                c.split ? concat(", ", schedule.splits, " splits") : "", c.bias_boxes ? ", bias in boxes" : "",
                c.persistent ? ", scheduled by a counter" : "", c.grouped ? ", a query head at a time" : "",
                c.ordered ? ", dq in a fixed order" : "", c.both_ways ? ", of the last heads the other way round" : "",
                c.rounds ? ", rounded by blocks without tiles" : "",
                c.last_rounds ? ", rounded with its last sums" : "",
                c.late_preprocess ? ", preprocess of later heads meanwhile" : "");
}

}  // namespace tilewise::backends::hopper
