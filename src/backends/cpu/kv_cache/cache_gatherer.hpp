// Selected keys of a cache, brought together block by block for the kernels that read chunks: from wherever a
// sequence's places lie, widened where the cache is in fp8.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cpu/kernels.hpp"
#include "backends/cpu/selected_keys.hpp"
#include "operations/kv_cache/params.hpp"
#include "operations/kv_cache/sequence.hpp"

namespace tilewise::backends::cpu {

class CacheGatherer final : public KeyGatherer {
 public:
  /// What is gathered, of sequence b and one key head, in blocks of `block_keys`. `dequantize`: to f32, of caches in
  /// fp8.
  struct Source {
    const operations::kv_cache::KvCacheParams& params;
    const operations::kv_cache::Sequence& sequence;
    std::int64_t batch, head_k, block_keys;
    DequantizeFn dequantize;
  };

  /// Gives the tile its keys and values: the thread's own memory, which the gatherer fills.
  CacheGatherer(const Source& source, const SeenKeys& seen, ForwardTile& tile);

 private:
  static void fill_block(const KeyGatherer& gatherer, std::int64_t first, std::int64_t count);
  /// One row of keys or values, of `dim` elements, as kernels read it.
  void load(const device::Tensor4& cache, const operations::kv_cache::ScaleTensor& scales,
            const operations::kv_cache::CachePlace& at, std::int64_t dim, std::byte* to) const;

  Source source_;
  const std::int32_t* places_;
  std::size_t element_;  // bytes
  std::byte *k_to_, *v_to_;
};

}  // namespace tilewise::backends::cpu
