// From a call of the KV cache step to rows that attend; see attended_rows.hpp.
#include "backends/attended_rows.hpp"

namespace tilewise::backends {
namespace {

using operations::kv_cache::KvCacheParams;

device::SinkTensor sink_of(const KvCacheParams& call) {
  if (call.sink == nullptr) return {nullptr, call.sink_stride, device::kBiasNone, 0};
  const device::BiasType type = call.sink_dtype == DType::bf16  ? device::kBiasBf16
                                : call.sink_dtype == DType::f16 ? device::kBiasF16
                                                                : device::kBiasF32;
  return {const_cast<void*>(call.sink), call.sink_stride, type, 0};
}

}  // namespace

device::AttendedRows attended_rows(const KvCacheParams& call) {
  device::AttendedRows rows{};
  rows.batch_size = call.batch_size;
  rows.seqlen_q = call.seqlen_q;
  rows.seqlen_k = call.paged ? call.max_pages_per_seq * call.row_places : call.row_places;
  rows.num_heads_q = call.num_heads_q;
  rows.num_heads_k = call.num_heads_k;
  rows.head_dim = call.head_dim;
  rows.head_dim_v = call.head_dim_v;
  rows.total_q = call.total_q;
  rows.cu_seqlens_q = call.cu_seqlens_q;
  rows.window_left = call.window_left;
  rows.window_right = call.window_right;
  rows.softmax_scale = call.softmax_scale;
  rows.softcap = call.softcap;
  rows.alibi_slopes = call.alibi_slopes;
  rows.alibi_batch_stride = call.alibi_batch_stride;
  rows.alibi_head_stride = call.alibi_head_stride;
  rows.dropout_scale = 1.0f;
  rows.q = call.q;
  rows.k = call.k_cache;
  rows.v = call.v_cache;
  rows.out = call.out;
  rows.softmax_lse = call.softmax_lse;
  rows.sink = sink_of(call);
  rows.key_indices = call.key_indices;
  return rows;
}

}  // namespace tilewise::backends
