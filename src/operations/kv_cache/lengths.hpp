// Checking the lengths, tables and slots of a call: on the CPU before anything is written, so that a refused call
// leaves caches and scales as they were; on a GPU where the user asks for it.
#pragma once

#include "core/visibility.hpp"
#include "operations/kv_cache/call.hpp"

namespace tilewise::operations::kv_cache {

/// Throws for a value that leads outside its tensor. The host must be able to read them.
void check_values(const KvCacheParams& params);

/// Throws for an index among key_indices that is neither -1 nor a key of its sequence. Likewise.
void check_selected_keys(const KvCacheParams& params);

/// With TILEWISE_CHECK=1: the same for values in a GPU's memory, which are copied to the host.
TILEWISE_INTERNAL void check_device_values(const Call& call, const KvCacheProblem& problem, void* stream);

}  // namespace tilewise::operations::kv_cache
