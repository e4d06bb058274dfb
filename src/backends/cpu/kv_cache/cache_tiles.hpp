// A chunk of keys and values as the kernels for many queries read them: in the cache itself where it lies there
// in one piece, else gathered from pages, or widened from fp8, into scratch that stays in the core's cache.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cpu/kernels.hpp"
#include "operations/kv_cache/params.hpp"
#include "operations/kv_cache/sequence.hpp"

namespace tilewise::backends::cpu {

/// Key heads [first, last) of a task.
struct HeadRange {
  std::int64_t first, last;
  [[nodiscard]] std::int64_t count() const { return last - first; }
};

/// Keys from the chunk's first one on; strides in elements.
struct CacheChunk {
  const void *k, *v;
  std::int64_t k_stride, v_stride, k_head_stride, v_head_stride;
  bool in_cache;
};

class CacheTiles {
 public:
  CacheTiles(const KvCacheProblem& problem, const KernelSet& kernels);

  /// What the kernels read: the dtype of q, or f32 for caches in fp8.
  [[nodiscard]] ElementIndex element() const { return element_; }
  /// Keys of a chunk, which starts at a multiple of them; 0: any range is one chunk. A function of shapes alone, so
  /// that results do not depend on threads.
  [[nodiscard]] std::int64_t chunk_keys() const { return chunk_keys_; }
  /// Bytes that chunk() needs for `heads` key heads.
  [[nodiscard]] std::size_t scratch_bytes(std::int64_t heads) const;

  /// The chunk that starts at key `start`, of which keys [begin, end) are read.
  [[nodiscard]] CacheChunk chunk(const operations::kv_cache::KvCacheParams& p, const operations::kv_cache::Sequence& s,
                                 std::int64_t b, const HeadRange& heads, std::int64_t start,
                                 const operations::kv_cache::KeyRange& keys, std::byte* scratch) const;

 private:
  struct Source;
  void gather(const operations::kv_cache::KvCacheParams& p, const operations::kv_cache::Sequence& s, std::int64_t b,
              const HeadRange& heads, std::int64_t start, const operations::kv_cache::KeyRange& keys,
              const Source& source, std::byte* to) const;

  ElementIndex element_;
  std::size_t size_;  // of an element that kernels read
  DequantizeFn dequantize_;
  std::int64_t dim_, dim_v_, chunk_keys_ = 0;
  bool mla_, gathers_ = false;
};

}  // namespace tilewise::backends::cpu
