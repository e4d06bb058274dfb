// A call's addresses, strides and numbers; see bind.hpp.
#include "backends/portable/kv_cache/bind.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace tilewise::backends::portable {
namespace {

using operations::kv_cache::KvCacheParams;

device::BiasType type_of(DType dtype) {
  return dtype == DType::bf16 ? device::kBiasBf16 : dtype == DType::f16 ? device::kBiasF16 : device::kBiasF32;
}

device::ScaleTensor scale_of(const operations::kv_cache::ScaleTensor& t) {
  return {t.data, t.batch_stride, t.row_stride, t.place_stride, t.head_stride, t.value, 0};
}

device::SinkTensor sink_of(const KvCacheParams& call) {
  return {const_cast<void*>(call.sink), call.sink_stride,
          call.sink == nullptr ? std::int32_t{device::kBiasNone} : std::int32_t{type_of(call.sink_dtype)}, 0};
}

device::ScoreParams score_of(const KvCacheParams& call) {
  device::ScoreParams score{};
  score.window_left = call.window_left;
  score.window_right = call.window_right;
  score.softmax_scale = call.softmax_scale;
  score.softcap = call.softcap;
  score.alibi_slopes = call.alibi_slopes;
  score.alibi_batch_stride = call.alibi_batch_stride;
  score.alibi_head_stride = call.alibi_head_stride;
  score.dropout_scale = 1.0f;
  return score;
}

device::RotaryTables rotary_of(const KvCacheParams& call) {
  const operations::kv_cache::RotaryTables& r = call.rotary;
  return {r.cos,
          r.sin,
          r.cos_stride,
          r.sin_stride,
          r.rows,
          r.dim,
          r.offset,
          static_cast<std::int64_t>(size_of(r.dtype)),
          call.rotary_seqlens,
          call.window_left >= 0 || call.window_right >= 0};
}

device::AttentionShape shape_of(const KvCacheParams& call) {
  device::AttentionShape shape{};
  shape.batch_size = call.batch_size;
  shape.seqlen_q = call.seqlen_q;
  shape.seqlen_k = call.paged ? call.max_pages_per_seq * call.row_places : call.row_places;
  shape.num_heads_q = call.num_heads_q;
  shape.num_heads_k = call.num_heads_k;
  shape.head_dim = call.head_dim;
  shape.head_dim_v = call.head_dim_v;
  shape.total_q = call.total_q;
  shape.cu_seqlens_q = call.cu_seqlens_q;
  return shape;
}

device::CacheShape cache_of(const KvCacheParams& call) {
  return {call.cache_rows,
          call.row_places,
          call.append ? call.seqlen_k_new : 0,
          call.append ? call.total_k_new : 0,
          std::clamp<std::int64_t>(call.cache_seqlen, -1, std::numeric_limits<std::int32_t>::max()),
          call.max_pages_per_seq,
          call.block_table_stride,
          static_cast<std::int64_t>(size_of(call.cache_dtype)),
          call.cu_seqlens_k_new,
          call.cache_seqlens,
          call.cache_batch_idx,
          call.cache_leftpad,
          call.block_table};
}

device::NewKeys new_keys_of(const KvCacheParams& call) {
  return {call.k, call.mla ? device::Tensor4{} : call.v, call.packed, !call.mla};
}

}  // namespace

void bind(const KvCacheParams& call, device::KvCacheForwardParams& params) {
  params.shape = shape_of(call);
  params.score = score_of(call);
  params.cache = cache_of(call);
  if (params.appends) params.new_keys = new_keys_of(call);
  params.q = call.q;
  params.rotary = rotary_of(call);
  params.k_cache = call.k_cache;
  params.v_cache = call.v_cache;
  params.out = call.out;
  params.k_scale = scale_of(call.k_scale);
  params.v_scale = scale_of(call.v_scale);
  params.softmax_lse = call.softmax_lse;
  params.sink = sink_of(call);
}

void bind(const KvCacheParams& call, device::KvCacheCombineParams& params) {
  params.shape = shape_of(call);
  params.cache = cache_of(call);
  params.out = call.out;
  params.softmax_lse = call.softmax_lse;
  params.sink = sink_of(call);
}

void bind(const KvCacheParams& call, device::AppendKvParams& params) {
  params.shape = shape_of(call);
  params.cache = cache_of(call);
  params.new_keys = new_keys_of(call);
  params.k_cache = call.k_cache;
  params.k_scale = scale_of(call.k_scale);
  if (!call.mla) {
    params.v_cache = call.v_cache;
    params.v_scale = scale_of(call.v_scale);
  }
  params.rotary = rotary_of(call);
  params.slots = call.slots;
  params.slot_bytes = call.slots_i64 ? 8 : 4;
  params.slots_batch_stride = call.slots_batch_stride;
  params.slots_stride = call.slots_stride;
}

void bind(const KvCacheParams& call, device::RotateQueriesParams& params) {
  params.shape = shape_of(call);
  params.cache = cache_of(call);
  params.q = call.q;
  if (call.packed) params.q.batch_stride = 0;
  params.rotated = rotated_queries(call);
  params.rotary = rotary_of(call);
  params.packed = call.packed;
}

device::Tensor4 rotated_queries(const KvCacheParams& call) {
  const std::int64_t row = call.num_heads_q * call.head_dim;
  return {nullptr, call.packed ? 0 : call.seqlen_q * row, row, call.head_dim};
}

}  // namespace tilewise::backends::portable
