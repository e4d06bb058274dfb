// Configs of the KV cache kernels: pure functions of the problem and the device.
#pragma once

#include "backends/portable/attention/schedule.hpp"
#include "backends/portable/kv_cache/kernels.hpp"
#include "backends/portable/traits.hpp"
#include "operations/kv_cache/features.hpp"
#include "tilewise/kv_cache.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::portable {

/// What portable kernels honour, for every family.
[[nodiscard]] operations::kv_cache::FeatureSet kv_cache_features();

/// What the step's attention is to the schedules of attention: as many keys as the cache has room for.
[[nodiscard]] Problem attention_of(const KvCacheProblem& problem);

/// Everything decided but `split`.
[[nodiscard]] device::KvCacheForwardConfig kv_cache_forward_config(const KvCacheProblem& problem,
                                                                   const DeviceTraits& traits);
/// Everything decided but `seqlens_alone`, which is the forward kernel's: combine relies on what that leaves then.
[[nodiscard]] device::KvCacheCombineConfig kv_cache_combine_config(const Problem& attention);
[[nodiscard]] device::AppendKvConfig append_kv_config(const KvCacheProblem& problem);
[[nodiscard]] device::AppendKvConfig rotate_queries_config(const KvCacheProblem& problem);

/// As attention's. Byte tiles are half as large, and widening them takes a wave from waiting: at head_dim 128 there is
/// room for twelve, of which eight do best. As many waves have room whose tiles are in registers.
[[nodiscard]] constexpr int blocks_at_once(const device::KvCacheForwardConfig& config) {
  const bool narrow = config.head_dim + config.head_dim_v <= 256;
  return (config.multiplies_bytes || config.direct_operands) && narrow
             ? 8
             : blocks_at_once(static_cast<const device::ForwardConfig&>(config));
}

/// What lanes append of a key head's new key and its value: see device::append_units().
[[nodiscard]] std::int64_t append_units_of(const KvCacheProblem& problem);

}  // namespace tilewise::backends::portable
