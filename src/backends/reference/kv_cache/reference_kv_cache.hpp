// The reference's row of the dispatch table for the KV cache step: docs/semantics.md in code.
#pragma once

#include "core/implementation.hpp"
#include "operations/kv_cache/params.hpp"

namespace tilewise::backends {

/// "reference". Accepts every valid KV cache problem on the CPU, at an estimate above that of whatever is faster.
[[nodiscard]] const core::Implementation& reference_kv_cache_implementation();

/// Does every look-up of a call whose keys are appended, and throws Error for one that is out of range.
void check_cache_look_ups(const operations::kv_cache::KvCacheParams& params, const KvCacheProblem& problem);

}  // namespace tilewise::backends
