// From a KV cache problem to steps of portable kernels: append_kv, which rotates queries too, then attention's forward
// kernel over the cache, and combine where keys are split. A pure function of the problem and the device's description.
#pragma once

#include "core/device_description.hpp"
#include "gpu/lowering.hpp"
#include "operations/kv_cache/params.hpp"
#include "tilewise/kv_cache.hpp"

namespace tilewise::backends::portable {

using gpu::Outcome;

[[nodiscard]] Outcome lower(const KvCacheProblem& problem, const core::DeviceDescription& device, gpu::Family family);

/// Whether every row that kernels touch starts on 16 bytes.
[[nodiscard]] bool is_aligned(const operations::kv_cache::KvCacheParams& call);

}  // namespace tilewise::backends::portable
