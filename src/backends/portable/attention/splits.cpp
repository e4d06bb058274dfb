// A model of split keys; see splits.hpp.
#include "backends/portable/attention/splits.hpp"

#include <algorithm>

#include "backends/portable/attention/schedule.hpp"
#include "core/ceil_div.hpp"

namespace tilewise::backends::portable {
namespace {

using core::ceil_div;

constexpr std::int64_t kFewestTilesASplit = 2;          // below, combining costs more than idle multiprocessors
constexpr std::int64_t kFewestStepsASplit = 4;          // likewise of tiles of queries, for dk and dv
constexpr double kTileUs = 0.6, kLoneWaveTileUs = 2.0;  // of a tile of keys beside its products (H200)
constexpr double kCombineUs = 6.0;                      // launch and latency of combine
constexpr double kCombineBytes = 12.0;  // that a float costs on its way through memory, in units of its bandwidth

double split_us(const Problem& p, const DeviceTraits& traits, const device::ForwardConfig& config, std::int64_t splits,
                std::int64_t blocks, std::int64_t most_at_once) {
  const std::int64_t all = blocks * splits, tiles = ceil_div(p.seqlen_k, config.block_n);
  const std::int64_t at_once = std::min(ceil_div(all, std::int64_t{traits.multiprocessors}), most_at_once);
  const std::int64_t rounds = ceil_div(all, at_once * traits.multiprocessors);
  const double flops = 2.0 * config.block_m() * config.block_n * (config.head_dim + config.head_dim_v);
  const double rate = traits.gflops / traits.multiprocessors / static_cast<double>(at_once);
  const double tile_us = (config.waves == 1 ? kLoneWaveTileUs : kTileUs) + 1e-3 * flops / rate;
  const double forward_us = static_cast<double>(rounds * ceil_div(tiles, splits)) * tile_us;
  if (splits == 1) return forward_us;
  const double rows = static_cast<double>(p.batch_size * p.num_heads_q * p.seqlen_q);
  const double bytes = kCombineBytes * static_cast<double>(splits) * rows * static_cast<double>(p.head_dim_v);
  return forward_us + kCombineUs + 1e-3 * bytes / traits.gigabytes_per_second;
}

}  // namespace

std::int64_t forward_splits(const Problem& p, const DeviceTraits& traits, const device::ForwardConfig& config,
                            std::int64_t blocks, std::int64_t at_once) {
  const std::int64_t tiles = ceil_div(p.seqlen_k, config.block_n);
  const std::int64_t enough = traits.multiprocessors * at_once;
  if (p.batch_invariant || blocks == 0 || blocks >= enough) return 1;
  std::int64_t best = 1;
  double least = split_us(p, traits, config, 1, blocks, at_once);
  for (std::int64_t splits = 2; splits <= std::min<std::int64_t>(tiles / kFewestTilesASplit, device::kMostSplits);
       ++splits) {
    const double us = split_us(p, traits, config, splits, blocks, at_once);
    if (us < least) least = us, best = splits;
  }
  return best;
}

std::int64_t query_splits(const Problem& p, std::int64_t blocks, std::int64_t steps, int multiprocessors) {
  if (p.batch_invariant || blocks == 0) return 1;
  const std::int64_t most = std::min<std::int64_t>(steps / kFewestStepsASplit, device::kMostSplits);
  return std::clamp<std::int64_t>(multiprocessors / blocks, 1, std::max<std::int64_t>(most, 1));
}

}  // namespace tilewise::backends::portable
