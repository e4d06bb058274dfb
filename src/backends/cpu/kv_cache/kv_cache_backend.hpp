// The CPU's rows of the dispatch table for the KV cache step, one for each instruction set.
#pragma once

#include <span>

#include "core/implementation.hpp"

namespace tilewise::backends {

/// Best first; bf16's own instruction sets serve q in bf16 alone, AMX with caches in bf16 alone.
[[nodiscard]] std::span<const core::Implementation* const> cpu_kv_cache_implementations();

}  // namespace tilewise::backends
