// What the kernels of the KV cache step share: how they are told of a call, and the launch that joins parts of the
// keys.
#pragma once

#include <cstdint>

#include "backends/attended_rows.hpp"
#include "backends/cuda/hopper/forward_launch.hpp"
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
  static device::AttendedRows of(const void* call) { return attended_rows(params_of(call)); }
  /// For tensor maps of keys and values, of which each page, or row of a contiguous cache, counts as a sequence.
  static device::AttendedRows keys_of(const void* call);
};

/// With queries that a launch before has rotated into the workspace.
struct RotatedCalls : CacheCalls {
  static device::AttendedRows of(const void* call) {
    device::AttendedRows rows = CacheCalls::of(call);
    rows.q = portable::rotated_queries(params_of(call));
    return rows;
  }
};

/// What all of the step's kernels are told of a call.
template <typename Params>
void bind_step(const void* call, Params& params) {
  const device::AttendedRows rows = CacheCalls::of(call);
  bind_rows(rows, params);
  params.cache = portable::cache_of(CacheCalls::params_of(call));
  if constexpr (requires { params.k; }) params.k = rows.k;
}

/// `attention` is the step's, as portable::attention_of() has it.
void add_cache_combine(const Problem& attention, std::int64_t splits, gpu::LoweringBuilder& builder);

/// The same of parts that are scheduled by lengths: blocks take turns at the rows that have several.
void add_scheduled_combine(const Problem& attention, const device::KeySchedule& key_schedule, int multiprocessors,
                           gpu::LoweringBuilder& builder);

}  // namespace tilewise::backends::hopper
