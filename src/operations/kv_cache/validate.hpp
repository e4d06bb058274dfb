// The limits of a KV cache problem.
#pragma once

#include <string_view>

#include "core/visibility.hpp"
#include "tilewise/kv_cache.hpp"

namespace tilewise::operations::kv_cache {

/// Throws unless `dtype` is one that q, new keys and out may have; `name` is the tensor's. The message lists those that
/// are taken on the device.
void validate_dtype(std::string_view name, DType dtype, DeviceType device);
/// Throws unless a cache of `cache_dtype` goes with q and new keys of `dtype`.
void validate_cache_dtype(DType dtype, DType cache_dtype);
void validate_head_counts(const KvCacheProblem& problem);

/// As tilewise::validate().
TILEWISE_INTERNAL void validate(const KvCacheProblem& problem);

}  // namespace tilewise::operations::kv_cache
