// Attention over a cache: the forward kernel of attention on keys that lie in a cache.
#pragma once

#include "device/attention/forward.h"
#include "device/kv_cache/call.h"

namespace tilewise::device {

template <TileOps Ops, auto C>
using KvCacheForward = Forward<Ops, C, KvCacheCall>;

}  // namespace tilewise::device
