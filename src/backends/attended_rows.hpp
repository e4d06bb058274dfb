// The KV cache step's queries and keys as every kernel that attends sees them.
#pragma once

#include "device/common/params.h"
#include "operations/kv_cache/params.hpp"

namespace tilewise::backends {

/// k and v are the cache's. How many keys a sequence has, and where they lie, its own lengths and tables say.
[[nodiscard]] device::AttendedRows attended_rows(const operations::kv_cache::KvCacheParams& call);

}  // namespace tilewise::backends
