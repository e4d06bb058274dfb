// The reference's row of the dispatch table for the KV cache step: docs/semantics.md in code.
#pragma once

#include "core/implementation.hpp"

namespace tilewise::backends {

/// "reference". Accepts every valid KV cache problem on the CPU, at an estimate above that of whatever is faster.
[[nodiscard]] const core::Implementation& reference_kv_cache_implementation();

}  // namespace tilewise::backends
