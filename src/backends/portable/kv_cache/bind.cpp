// A call's addresses, strides and numbers; see bind.hpp.
#include "backends/portable/kv_cache/bind.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "backends/attended_rows.hpp"
#include "backends/portable/attention/bind.hpp"

namespace tilewise::backends::portable {
namespace {

using operations::kv_cache::KvCacheParams;

device::ScaleTensor scale_of(const operations::kv_cache::ScaleTensor& t) {
  return {t.data, t.batch_stride, t.row_stride, t.place_stride, t.head_stride, t.value, 0};
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

device::NewKeys new_keys_of(const KvCacheParams& call) {
  return {call.k, call.mla ? device::Tensor4{} : call.v, call.packed, !call.mla};
}

}  // namespace

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

void bind(const KvCacheParams& call, device::KvCacheForwardParams& params) {
  bind(attended_rows(call), params);
  params.cache = cache_of(call);
  params.k_scale = scale_of(call.k_scale);
  params.v_scale = scale_of(call.v_scale);
  if (params.appends) params.new_keys = new_keys_of(call);
  params.rotary = rotary_of(call);
}

void bind(const KvCacheParams& call, device::KvCacheMaskTilesParams& params) {
  params.shape = attended_rows(call);
  params.cache = cache_of(call);
}

void bind(const KvCacheParams& call, device::KvCacheCombineParams& params) {
  bind(attended_rows(call), params);
  params.cache = cache_of(call);
}

void bind(const KvCacheParams& call, device::AppendKvParams& params) {
  params.shape = attended_rows(call);
  params.cache = cache_of(call);
  params.new_keys = new_keys_of(call);
  params.k = call.k_cache;
  params.k_scale = scale_of(call.k_scale);
  if (!call.mla) {
    params.v = call.v_cache;
    params.v_scale = scale_of(call.v_scale);
  }
  params.rotary = rotary_of(call);
  params.slots = call.slots;
  params.slot_bytes = call.slots_i64 ? 8 : 4;
  params.slots_batch_stride = call.slots_batch_stride;
  params.slots_stride = call.slots_stride;
}

void bind(const KvCacheParams& call, device::RotateQueriesParams& params) {
  params.shape = attended_rows(call);
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
