// Chunks of keys and values; see cache_tiles.hpp.
#include "backends/cpu/kv_cache/cache_tiles.hpp"

#include <algorithm>
#include <cstring>

#include "backends/cpu/rows.hpp"
#include "operations/kv_cache/rules.hpp"

namespace tilewise::backends::cpu {

using operations::kv_cache::CachePlace, operations::kv_cache::KeyRange, operations::kv_cache::KvCacheParams;
using operations::kv_cache::ScaleTensor, operations::kv_cache::Sequence;

namespace {

constexpr std::int64_t kChunkBytes =
    512 << 10;                             // of keys and values: with what a kernel needs, a core's cache holds it
constexpr std::int64_t kKeyMultiple = 64;  // the kernels' blocks of keys divide it
constexpr std::int64_t kLeastPage = 128;   // from this size on, a page is a chunk by itself

}  // namespace

/// Keys or values of the cache, and their scales.
struct CacheTiles::Source {
  const device::Tensor4& cache;
  const ScaleTensor& scales;
  std::int64_t dim;
};

CacheTiles::CacheTiles(const KvCacheProblem& p, const KernelSet& kernels)
    : element_(operations::kv_cache::is_fp8(p) ? kElementF32 : element_of(p.dtype)),
      size_(element_size(element_)),
      dequantize_(kernels.dequantize),
      dim_(p.head_dim),
      dim_v_(p.mla ? 0 : p.head_dim_v),
      mla_(p.mla) {
  const bool fp8 = operations::kv_cache::is_fp8(p), paged = operations::kv_cache::is_paged(p);
  if (!fp8 && !paged) return;
  if (!fp8 && p.page_size >= kLeastPage && p.page_size % kKeyMultiple == 0) {
    chunk_keys_ = p.page_size;
    return;
  }
  gathers_ = true;
  const std::int64_t key_bytes = p.num_heads_k * (dim_ + dim_v_) * static_cast<std::int64_t>(size_);
  chunk_keys_ = std::clamp<std::int64_t>(kChunkBytes / key_bytes / kKeyMultiple, 1, 16) * kKeyMultiple;
}

std::size_t CacheTiles::scratch_bytes(std::int64_t heads) const {
  return gathers_ ? static_cast<std::size_t>(chunk_keys_ * heads * (dim_ + dim_v_)) * size_ : 0;
}

CacheChunk CacheTiles::chunk(const KvCacheParams& p, const Sequence& s, std::int64_t b, const HeadRange& heads,
                             std::int64_t start, const KeyRange& keys, std::byte* scratch) const {
  if (!gathers_) {
    // A page that nothing is read of may have no entry: the first key that is read tells the page.
    CachePlace at = cache_place(p, s, b, s.leftpad + (p.paged ? keys.begin : start));
    if (p.paged) at.place = 0;
    return {row_address(p.k_cache, at.row, at.place, heads.first, size_),
            row_address(p.v_cache, at.row, at.place, heads.first, size_),
            p.k_cache.seq_stride,
            p.v_cache.seq_stride,
            p.k_cache.head_stride,
            p.v_cache.head_stride,
            true};
  }
  std::byte* k = scratch;
  std::byte* v = k + static_cast<std::size_t>(chunk_keys_ * heads.count() * dim_) * size_;
  gather(p, s, b, heads, start, keys, {p.k_cache, p.k_scale, dim_}, k);
  const std::int64_t k_stride = heads.count() * dim_;
  if (mla_) return {k, k, k_stride, k_stride, dim_, dim_, false};
  gather(p, s, b, heads, start, keys, {p.v_cache, p.v_scale, dim_v_}, v);
  return {k, v, k_stride, heads.count() * dim_v_, dim_, dim_v_, false};
}

void CacheTiles::gather(const KvCacheParams& p, const Sequence& s, std::int64_t b, const HeadRange& heads,
                        std::int64_t start, const KeyRange& keys, const Source& source, std::byte* to) const {
  const std::size_t row_bytes = static_cast<std::size_t>(heads.count() * source.dim) * size_;
  const auto head_bytes = static_cast<std::size_t>(source.dim) * size_;
  // Kernels may read, and hide, keys before the first one of a block: what lies there must be numbers.
  std::memset(to, 0, static_cast<std::size_t>(keys.begin - start) * row_bytes);
  std::byte* next = to + static_cast<std::size_t>(keys.begin - start) * row_bytes;
  const bool plain = p.scales == CacheScales::none;
  const bool adjacent = plain && source.cache.head_stride == source.dim;
  const bool whole = adjacent && source.cache.seq_stride == heads.count() * source.dim;
  for (std::int64_t j = keys.begin; j < keys.end;) {
    const CachePlace at = cache_place(p, s, b, s.leftpad + j);
    const std::int64_t run = std::min(keys.end - j, p.row_places - at.place);
    const std::size_t size = size_of(p.cache_dtype);
    if (whole) {
      std::memcpy(next, row_address(source.cache, at.row, at.place, heads.first, size),
                  static_cast<std::size_t>(run) * row_bytes);
      next += static_cast<std::size_t>(run) * row_bytes;
      j += run;
      continue;
    }
    for (std::int64_t n = 0; n < run; ++n, ++j) {
      if (adjacent) {
        std::memcpy(next, row_address(source.cache, at.row, at.place + n, heads.first, size), row_bytes);
        next += row_bytes;
        continue;
      }
      for (std::int64_t h = heads.first; h < heads.last; ++h, next += head_bytes) {
        const void* row = row_address(source.cache, at.row, at.place + n, h, size);
        if (plain) {
          std::memcpy(next, row, head_bytes);
        } else {
          dequantize_(row, source.dim, source.scales.load(b, at.row, at.place + n, h), next);
        }
      }
    }
  }
}

}  // namespace tilewise::backends::cpu
