// The CPU's rows of the dispatch table for the KV cache step, one for each instruction set.
#pragma once

#include <span>

#include "core/implementation.hpp"
#include "operations/kv_cache/params.hpp"

namespace tilewise::backends {

/// Throws Error where a look-up of a call, whose keys are appended, is out of range.
using CacheLookUpCheck = void (*)(const operations::kv_cache::KvCacheParams& params, const KvCacheProblem& problem);

/// Best first; bf16's own instruction sets serve q in bf16 alone, AMX with caches in bf16 alone. `check` is asked where
/// TILEWISE_CHECK=1 asks.
[[nodiscard]] std::span<const core::Implementation* const> cpu_kv_cache_implementations(CacheLookUpCheck check);

}  // namespace tilewise::backends
