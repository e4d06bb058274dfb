// Selected keys of a cache; see cache_gatherer.hpp.
#include "backends/cpu/kv_cache/cache_gatherer.hpp"

#include <cstring>

#include "backends/cpu/rows.hpp"

namespace tilewise::backends::cpu {

using operations::kv_cache::CachePlace, operations::kv_cache::KvCacheParams, operations::kv_cache::ScaleTensor;

CacheGatherer::CacheGatherer(const Source& source, const SeenKeys& seen, ForwardTile& tile)
    : KeyGatherer{&fill_block},
      source_(source),
      places_(seen.places),
      element_(source.params.scales == CacheScales::none ? size_of(source.params.cache_dtype) : sizeof(float)) {
  const KvCacheParams& p = source.params;
  const auto block = static_cast<std::size_t>(source.block_keys) * element_;
  const std::size_t k_bytes = block * static_cast<std::size_t>(p.head_dim);
  const std::size_t v_bytes = p.mla ? 0 : block * static_cast<std::size_t>(p.head_dim_v);
  k_to_ = static_cast<std::byte*>(thread_memory(ThreadMemory::gathered, k_bytes + v_bytes));
  v_to_ = p.mla ? nullptr : k_to_ + k_bytes;
  tile.k = k_to_;
  tile.k_stride = p.head_dim;
  tile.v = p.mla ? k_to_ : v_to_;
  tile.v_stride = p.mla ? p.head_dim : p.head_dim_v;
  tile.gatherer = this;
}

void CacheGatherer::load(const device::Tensor4& cache, const ScaleTensor& scales, const CachePlace& at,
                         std::int64_t dim, std::byte* to) const {
  const KvCacheParams& p = source_.params;
  const void* row = row_address(cache, at.row, at.place, source_.head_k, size_of(p.cache_dtype));
  if (p.scales == CacheScales::none) {
    std::memcpy(to, row, static_cast<std::size_t>(dim) * element_);
  } else {
    source_.dequantize(row, dim, scales.load(source_.batch, at.row, at.place, source_.head_k), to);
  }
}

void CacheGatherer::fill_block(const KeyGatherer& gatherer, std::int64_t first, std::int64_t count) {
  const auto& g = static_cast<const CacheGatherer&>(gatherer);
  const KvCacheParams& p = g.source_.params;
  const auto k_bytes = static_cast<std::size_t>(p.head_dim) * g.element_;
  const auto v_bytes = static_cast<std::size_t>(p.head_dim_v) * g.element_;
  for (std::int64_t n = 0; n < count; ++n) {
    const operations::kv_cache::Sequence& s = g.source_.sequence;
    const CachePlace at = cache_place(p, s, g.source_.batch, s.leftpad + g.places_[first + n]);
    g.load(p.k_cache, p.k_scale, at, p.head_dim, g.k_to_ + static_cast<std::size_t>(n) * k_bytes);
    if (g.v_to_ != nullptr)
      g.load(p.v_cache, p.v_scale, at, p.head_dim_v, g.v_to_ + static_cast<std::size_t>(n) * v_bytes);
  }
}

}  // namespace tilewise::backends::cpu
