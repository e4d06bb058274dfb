// Into how many parts a KV cache step's keys go, of which the host knows no more than the cache's capacity: pure
// functions of the problem and the device.
#pragma once

#include <cstdint>

#include "backends/portable/traits.hpp"
#include "device/kv_cache/config.h"
#include "device/kv_cache/params.h"
#include "tilewise/kv_cache.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::portable {

/// As many for each sequence, whose queries are `tiles` tiles for each of `heads` heads (or parts of heads).
[[nodiscard]] std::int64_t key_splits(const KvCacheProblem& problem, const DeviceTraits& traits,
                                      const device::KvCacheForwardConfig& config, std::int64_t heads,
                                      std::int64_t tiles);

/// How a kernel's blocks take the keys that are scheduled.
struct ScheduledBlocks {
  std::int64_t a_part;   // blocks that work on one part: of all heads, or parts of heads, or tiles of rows
  int at_once;           // blocks that a multiprocessor computes
  std::int32_t block_n;  // keys of a tile
  bool sparing = false;  // device::schedules_sparingly()
};

/// How parts are scheduled by lengths, where these may differ much; places 0: they are not.
[[nodiscard]] device::KeySchedule schedule_keys(const KvCacheProblem& problem, const DeviceTraits& traits,
                                                const ScheduledBlocks& blocks);

/// Of a sequence, where all are equally long.
[[nodiscard]] std::int64_t mean_parts(const device::KeySchedule& key_schedule, std::int64_t batch_size);

}  // namespace tilewise::backends::portable
