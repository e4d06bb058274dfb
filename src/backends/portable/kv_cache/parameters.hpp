// What each pointer in the parameter blocks of the KV cache kernels points to: the one table that workspaces, the
// emulation's memory checks and launch.json go by.
#pragma once

#include "backends/portable/attention/parameters.hpp"
#include "device/kv_cache/params.h"

namespace tilewise::backends::portable {

void for_each_pointer(const device::KvCacheForwardParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::KvCacheMaskTilesParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::KvCacheCombineParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::AppendKvParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::RotateQueriesParams& p, const gpu::RegionVisitor& visit);

}  // namespace tilewise::backends::portable
