// Staggered blocks; see stagger.hpp.
#include "backends/portable/attention/stagger.hpp"

#include <algorithm>

#include "backends/portable/attention/functions.hpp"
#include "backends/portable/attention/schedule.hpp"
#include "core/ceil_div.hpp"

namespace tilewise::backends::portable {
namespace {

constexpr std::int32_t kWaves = 8, kLanes = 64;

/// Whether accumulators and operands leave few registers for tiles on their way.
bool fills_registers(const device::ForwardConfig& c) { return c.head_dim + c.head_dim_v > 384; }

/// Then head_dim 256 alone has room, without a mask or lengths (12 to 56 bytes a lane spilled otherwise).
bool has_room(const device::ForwardConfig& c) {
  return !fills_registers(c) || (c.head_dim == 256 && c.head_dim_v == 256 && c.exact_dims && !c.ranged && !c.lengths);
}

/// Whether each product of a tile is at least 8 of its steps, so that so many operands can be under way.
bool has_steps(const device::ForwardConfig& c) {
  return c.block_n / 32 * (std::min(c.head_dim, c.head_dim_v) / 16) >= 8;
}

/// Whether all waves copy as many chunks of a tile: each waits until so many are there.
bool copies_evenly(std::int32_t elements) { return elements % (8 * kWaves * kLanes) == 0; }

/// Where copies go straight to shared memory keys come so; values, which are then read transposed by twice as many
/// reads, only where registers have no room for them.
void choose_copies(device::ForwardConfig& c, const DeviceTraits& traits) {
  if (!traits.copies_windows || !copies_evenly(c.block_n * c.head_dim)) return;
  c.direct_values = fills_registers(c) && copies_evenly(c.block_n * c.head_dim_v);
  c.direct_keys = 1;
  c.stages = 3;
}

}  // namespace

void stagger(device::ForwardConfig& config, const Problem& p, const DeviceTraits& traits) {
  if (traits.family != Family::cdna) return;
  // Elements that come one by one, options of scores and selected keys have no room beside operands read ahead.
  if (!config.vector_rows || !config.plain_scale || config.dropout || has_functions(p) || config.selects) return;
  device::ForwardConfig c = config;
  c.waves = kWaves;
  c.staggered = 1;
  c.stages = 2;
  choose_copies(c, traits);
  if (!has_room(c) || !has_steps(c) || !fits<Forward>(c, traits)) return;
  // Blocks of twice as many rows are for many queries, and must not leave multiprocessors without one.
  constexpr std::int64_t kFewQueries = 512;
  const std::int64_t blocks = core::ceil_div(p.seqlen_q, std::int64_t{c.block_m()}) * p.num_heads_q * p.batch_size;
  if (config.waves == kWaves || (p.seqlen_q > kFewQueries && blocks >= traits.multiprocessors)) config = c;
}

}  // namespace tilewise::backends::portable
