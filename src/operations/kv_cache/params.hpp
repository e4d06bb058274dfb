// What implementations of the KV cache step are launched with: plain data.
#pragma once

#include <cstdint>

#include "device/common/tensors.h"
#include "tilewise/kv_cache.hpp"

namespace tilewise::operations::kv_cache {

/// Scales of a cache. One number where data is null; a dimension that they do not have has stride 0.
struct ScaleTensor {
  float* data;
  float value;
  std::int64_t batch_stride, row_stride, place_stride, head_stride;  // row and place: of the cache

  /// Of key head h at a place of the cache, for sequence b.
  [[nodiscard]] float* at(std::int64_t b, std::int64_t row, std::int64_t place, std::int64_t h) const {
    return data + b * batch_stride + row * row_stride + place * place_stride + h * head_stride;
  }
  [[nodiscard]] float load(std::int64_t b, std::int64_t row, std::int64_t place, std::int64_t h) const {
    return data == nullptr ? value : *at(b, row, place, h);
  }
};

/// cos and sin of [position, i], i below rotary_dim / 2.
struct RotaryTables {
  const void *cos, *sin;
  std::int64_t cos_stride, sin_stride;  // between positions
  std::int64_t rows, dim, offset;       // dim 0: none
  DType dtype;
  bool interleaved;
};

struct KvCacheParams {
  std::int64_t batch_size, seqlen_q, total_q, seqlen_k_new, total_k_new;
  std::int64_t num_heads_q, num_heads_k, head_dim, head_dim_v;
  std::int64_t cache_rows, row_places;  // pages and page_size; contiguous: sequences of the cache and capacity
  std::int64_t max_pages_per_seq;
  bool attends, append, packed, paged, mla;
  DType dtype, cache_dtype;
  device::Tensor4 q, k, v, out;      // k, v: the new ones
  device::Tensor4 k_cache, v_cache;  // [row, place, head, dim]; v_cache: k_cache's first columns where mla
  device::LseTensor softmax_lse;     // data null where not wanted

  // Lengths; null where not given. cu_seqlens have batch_size + 1 entries, the others batch_size.
  const std::int32_t *cu_seqlens_q, *cu_seqlens_k_new, *cache_seqlens, *rotary_seqlens, *cache_batch_idx,
      *cache_leftpad;
  std::int64_t cache_seqlen;  // where cache_seqlens is null
  const std::int32_t* block_table;
  std::int64_t block_table_stride;  // between sequences
  const void* slots;                // null: none; [total_k_new], or [batch_size, seqlen_k_new] by its strides
  bool slots_i64;
  std::int64_t slots_batch_stride, slots_stride;

  RotaryTables rotary;
  CacheScales scales;
  ScaleTensor k_scale, v_scale;

  std::int64_t window_left, window_right;  // -1: unbounded; causal is already folded into window_right
  float softmax_scale, softcap;            // softcap 0: off
  const float* alibi_slopes;               // null: off
  std::int64_t alibi_batch_stride, alibi_head_stride;
  const void* sink;  // null: none
  DType sink_dtype;
  std::int64_t sink_stride;
  std::int64_t num_splits;
  bool batch_invariant;
  const TensorView* tables;  // of score_mod and mask_mod, as many as the problem has
  device::IndexTensor key_indices;
  const TensorView* block_mask;  // as many tensors as the problem's has
};

}  // namespace tilewise::operations::kv_cache
