// Numbers of parts, fitted to an H200; see key_parts.hpp and docs/benchmarks.
#include "backends/portable/kv_cache/key_parts.hpp"

#include <algorithm>
#include <cmath>

#include "backends/portable/attention/estimate.hpp"
#include "backends/portable/attention/selected_keys.hpp"
#include "backends/portable/attention/splits.hpp"
#include "backends/portable/kv_cache/schedule.hpp"
#include "operations/attention/work.hpp"

namespace tilewise::backends::portable {
namespace {

/// To so many keys all sequences have as many parts: what scheduling costs those that are equally long (4%) is more
/// there than what a long one can cost.
constexpr std::int64_t kLeastKeys = 8192;
/// Of blocks that are computed at once, the parts that there should be: of sequences that differ many, so that the last
/// ones to end are short; else as many as fit, so that all begin at once.
constexpr double kRounds = 2.5, kEvenRounds = 1.15, kMostEvenRounds = 1.5;
constexpr float kFewestTiles = 2.0f;
/// More parts than of so many keys win a longer sequence nothing, and cost a shorter one their merge.
constexpr std::int64_t kTypicalKeys = 16384;

}  // namespace

std::int64_t key_splits(const KvCacheProblem& p, const DeviceTraits& traits, const device::KvCacheForwardConfig& config,
                        std::int64_t heads, std::int64_t tiles) {
  if (p.num_splits > 0) return std::min<std::int64_t>(p.num_splits, device::kMostSplits);
  Problem typical = each_query_of(attention_of(p));
  if (p.top_k == 0 && p.cache_seqlens && tiles == 1) typical.seqlen_k = std::min(typical.seqlen_k, kTypicalKeys);
  return forward_splits(typical, traits, config, tiles * heads * p.batch_size, blocks_at_once(config));
}

device::KeySchedule schedule_keys(const KvCacheProblem& p, const DeviceTraits& traits, const ScheduledBlocks& blocks) {
  device::KeySchedule key_schedule{};
  const bool differ =
      p.top_k == 0 && p.cache_seqlens && p.batch_size > 1 && p.batch_size <= device::kMostScheduledSequences;
  if (!differ || p.num_splits > 0 || p.batch_invariant) return key_schedule;
  const double seen = operations::attention::most_keys_seen(attention_of(p), f(std::max<std::int64_t>(p.seqlen_q, 1)));
  const double most_tiles = std::ceil(seen / blocks.block_n) + 1.0;
  constexpr double kMostTiles = 2147483647.0;  // of all sequences
  if (seen <= f(kLeastKeys) || most_tiles * f(p.batch_size) > kMostTiles) return key_schedule;
  const double at_once = std::max(1.0, f(blocks.at_once * traits.multiprocessors) / f(blocks.a_part));
  const bool fit = f(p.batch_size) <= kMostEvenRounds * at_once;
  const double even_rounds = blocks.sparing ? 1.0 : fit ? kEvenRounds : kRounds;
  key_schedule.places =
      static_cast<std::int32_t>(std::ceil(kRounds * at_once)) + static_cast<std::int32_t>(p.batch_size);
  key_schedule.most_tiles = static_cast<std::int32_t>(most_tiles);
  key_schedule.of_parts = static_cast<float>(1.0 / (kRounds * at_once));
  key_schedule.of_even_parts = static_cast<float>(1.0 / (even_rounds * at_once));
  key_schedule.fewest_tiles = kFewestTiles;
  key_schedule.sparing = blocks.sparing;
  return key_schedule;
}

std::int64_t mean_parts(const device::KeySchedule& key_schedule, std::int64_t batch_size) {
  return std::max<std::int64_t>(1, (key_schedule.places - batch_size) / batch_size);
}

}  // namespace tilewise::backends::portable
