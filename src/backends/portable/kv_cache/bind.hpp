// From a call to each kernel's parameter block.
#pragma once

#include "device/kv_cache/params.h"
#include "operations/kv_cache/params.hpp"

namespace tilewise::backends::portable {

// Grid and workspace, and whether queries are rotated, stay as the lowering has set them.
void bind(const operations::kv_cache::KvCacheParams& call, device::KvCacheForwardParams& params);
void bind(const operations::kv_cache::KvCacheParams& call, device::KvCacheMaskTilesParams& params);
void bind(const operations::kv_cache::KvCacheParams& call, device::KvCacheCombineParams& params);
void bind(const operations::kv_cache::KvCacheParams& call, device::AppendKvParams& params);
void bind(const operations::kv_cache::KvCacheParams& call, device::RotateQueriesParams& params);

/// Where sequences are in the cache.
[[nodiscard]] device::CacheShape cache_of(const operations::kv_cache::KvCacheParams& call);

/// Queries as RotateQueries leaves them, side by side, but for their address.
[[nodiscard]] device::Tensor4 rotated_queries(const operations::kv_cache::KvCacheParams& call);

}  // namespace tilewise::backends::portable
