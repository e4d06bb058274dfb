// What the kernels of the KV cache step share: how they are told of a call, and the launch that joins parts of the
// keys.
#pragma once

#include <cstdint>

#include "backends/portable/kv_cache/bind.hpp"
#include "device/kv_cache/params.h"
#include "gpu/lowering.hpp"
#include "operations/kv_cache/params.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::hopper {

struct CacheCalls {
  static const operations::kv_cache::KvCacheParams& params_of(const void* call) {
    return *static_cast<const operations::kv_cache::KvCacheParams*>(call);
  }
  /// The attention over the cache's tensors, as far as tensor maps go.
  static device::AttentionParams of(const void* call);
  /// Its keys and values, of which each page, or row of a contiguous cache, counts as a sequence.
  static device::AttentionParams keys_of(const void* call);
};

/// With queries that a launch before has rotated into the workspace.
struct RotatedCalls : CacheCalls {
  static device::AttentionParams of(const void* call) {
    device::AttentionParams attention = CacheCalls::of(call);
    attention.q = portable::rotated_queries(params_of(call));
    return attention;
  }
};

/// As the portable kernel is told of the call: what all of the kernels' parameters have.
template <typename Params>
void bind_step(const void* call, Params& params) {
  device::KvCacheForwardParams from{};
  portable::bind(CacheCalls::params_of(call), from);
  params.shape = from.shape;
  params.score = from.score;
  params.cache = from.cache;
  params.out = from.out;
  params.softmax_lse = from.softmax_lse;
  if constexpr (requires { params.sink; }) params.sink = from.sink;
  if constexpr (requires { params.k; }) params.k = from.k_cache;
}

/// `attention` is the step's, as portable::attention_of() has it.
void add_cache_combine(const Problem& attention, std::int64_t splits, gpu::LoweringBuilder& builder);

/// The same of parts that are scheduled by lengths: blocks take turns at the rows that have several.
void add_scheduled_combine(const Problem& attention, const device::KeySchedule& key_schedule, int multiprocessors,
                           gpu::LoweringBuilder& builder);

}  // namespace tilewise::backends::hopper
