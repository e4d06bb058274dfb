// The keys and values of a sequence as the decode kernels read them: in the cache, page after page.
#pragma once

#include <cstdint>

#include "backends/cpu/kernels.hpp"
#include "backends/cpu/kv_cache/cache_tiles.hpp"
#include "operations/kv_cache/params.hpp"
#include "operations/kv_cache/sequence.hpp"

namespace tilewise::backends::cpu {

/// Whether the rows of all key heads of a key lie side by side, so that one task should read them together.
[[nodiscard]] bool heads_adjacent(const operations::kv_cache::KvCacheParams& p);

/// Of key heads [first, last) of sequence b; keys before `end` are fetched ahead.
[[nodiscard]] KeyStream cache_stream(const operations::kv_cache::KvCacheParams& p,
                                     const operations::kv_cache::Sequence& s, std::int64_t b, const HeadRange& heads,
                                     std::int64_t end);

}  // namespace tilewise::backends::cpu
