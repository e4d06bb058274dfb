// Combines the parts that split keys of a cache leave.
#pragma once

#include "device/attention/combine.h"
#include "device/kv_cache/call.h"

namespace tilewise::device {

template <TileOps Ops, auto C>
using KvCacheCombine = Combine<Ops, C, KvCacheCall>;

}  // namespace tilewise::device
