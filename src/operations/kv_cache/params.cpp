// A described call to the parameters of its implementations.
#include "core/device.hpp"
#include "operations/kv_cache/call.hpp"
#include "operations/kv_cache/lengths.hpp"
#include "operations/kv_cache/rules.hpp"
#include "operations/layout.hpp"

namespace tilewise::operations::kv_cache {
namespace {

using core::stride_at;

const std::int32_t* lengths(const TensorView& view) { return static_cast<const std::int32_t*>(view.data); }

/// Tensors [row, place, head, dim].
constexpr Axes kCacheAxes{0, 1, 2, 3};

ScaleTensor scale_tensor(const TensorView& view, const std::optional<double>& number, CacheScales kind) {
  ScaleTensor scale{};
  scale.value = static_cast<float>(number.value_or(1.0));
  if (!view.defined()) return scale;
  scale.data = static_cast<float*>(view.data);
  if (kind == CacheScales::head) scale.head_stride = stride_at(view, 0);
  if (kind == CacheScales::batch_head) {
    scale.batch_stride = stride_at(view, 0);
    scale.head_stride = stride_at(view, 1);
  }
  if (kind == CacheScales::token) {
    scale.row_stride = stride_at(view, 0);
    scale.place_stride = stride_at(view, 1);
    scale.head_stride = stride_at(view, 2);
  }
  return scale;
}

void set_shape(const KvCacheProblem& p, KvCacheParams& params) {
  params.batch_size = p.batch_size;
  params.seqlen_q = p.seqlen_q;
  params.total_q = p.total_q;
  params.seqlen_k_new = p.seqlen_k_new;
  params.total_k_new = p.total_k_new;
  params.num_heads_q = p.num_heads_q;
  params.num_heads_k = p.num_heads_k;
  params.head_dim = p.head_dim;
  params.head_dim_v = p.head_dim_v;
  params.paged = is_paged(p);
  params.cache_rows = params.paged ? p.num_pages : p.batch_size_cache;
  params.row_places = params.paged ? p.page_size : p.capacity;
  params.max_pages_per_seq = p.max_pages_per_seq;
  params.attends = !appends_alone(p);
  params.append = p.append;
  params.packed = is_packed(p);
  params.mla = p.mla;
  params.dtype = p.dtype;
  params.cache_dtype = p.cache_dtype;
}

void set_tensors(const Call& call, const KvCacheProblem& p, KvCacheParams& params) {
  const Axes axes = axes_of(p.layout);
  params.q = tensor4(call.one("q"), axes);
  params.k = tensor4(call.one("k"), axes);
  params.v = p.mla ? params.k : tensor4(call.one("v"), axes);
  params.out = tensor4(call.one("out"), axes);
  params.k_cache = tensor4(call.one("k_cache"), kCacheAxes);
  params.v_cache = p.mla ? params.k_cache : tensor4(call.one("v_cache"), kCacheAxes);
  params.softmax_lse = lse_tensor(call.one("softmax_lse"), params.packed);
  params.scales = p.scales;
  params.k_scale = scale_tensor(call.options.k_scale, call.options.k_scale_value, p.scales);
  params.v_scale = p.mla ? params.k_scale : scale_tensor(call.options.v_scale, call.options.v_scale_value, p.scales);
}

void set_places(const KvCacheOptions& o, const KvCacheProblem& p, KvCacheParams& params) {
  params.cu_seqlens_q = lengths(o.cu_seqlens_q);
  params.cu_seqlens_k_new =
      !p.append ? nullptr : lengths(o.cu_seqlens_k_new.defined() ? o.cu_seqlens_k_new : o.cu_seqlens_q);
  params.cache_seqlens = lengths(o.cache_seqlens);
  params.rotary_seqlens = lengths(o.rotary_seqlens);
  params.cache_batch_idx = lengths(o.cache_batch_idx);
  params.cache_leftpad = lengths(o.cache_leftpad);
  params.cache_seqlen = o.cache_seqlen.value_or(p.slots == SlotKind::none ? capacity_of(p) : 0);
  params.block_table = lengths(o.block_table);
  params.block_table_stride = o.block_table.strides[0];
  params.slots = o.slots.data;
  params.slots_i64 = p.slots == SlotKind::i64;
  if (o.slots.defined()) {
    params.slots_batch_stride = params.packed ? 0 : stride_at(o.slots, 0);
    params.slots_stride = stride_at(o.slots, o.slots.rank - 1);
  }
}

void set_rotary(const KvCacheOptions& o, const KvCacheProblem& p, KvCacheParams& params) {
  RotaryTables& r = params.rotary;
  if (p.rotary_dim == 0) return;
  r = {o.rotary_cos.data, o.rotary_sin.data, o.rotary_cos.strides[0], o.rotary_sin.strides[0], o.rotary_cos.shape[0],
       p.rotary_dim,      p.rotary_offset,   rotary_dtype(p),         p.rotary_interleaved};
}

void set_scores(const KvCacheOptions& o, const KvCacheProblem& p, KvCacheParams& params) {
  params.window_left = p.window_left;
  params.window_right = folded_window_right(p);
  params.softmax_scale = static_cast<float>(p.softmax_scale);
  params.softcap = static_cast<float>(p.softcap);
  if (o.alibi_slopes.defined()) {
    params.alibi_slopes = static_cast<const float*>(o.alibi_slopes.data);
    params.alibi_batch_stride = o.alibi_slopes.rank == 2 ? o.alibi_slopes.strides[0] : 0;
    params.alibi_head_stride = stride_at(o.alibi_slopes, o.alibi_slopes.rank - 1);
  }
  params.sink = o.sink.data;
  params.sink_dtype = sink_dtype(p);
  params.sink_stride = o.sink.strides[0];
  params.num_splits = p.num_splits;
  params.batch_invariant = p.batch_invariant;
  params.tables = o.tables.data();
  params.key_indices = index_tensor(o.key_indices, params.packed);
  params.block_mask = o.block_mask.data();
}

}  // namespace

KvCacheParams make_params(const Call& call, const KvCacheProblem& p) {
  KvCacheParams params{};
  set_shape(p, params);
  set_tensors(call, p, params);
  set_places(call.options, p, params);
  set_rotary(call.options, p, params);
  set_scores(call.options, p, params);
  if (p.device != DeviceType::cpu) return params;
  check_values(params);
  if (!core::checks_requested()) return params;
  check_selected_keys(params);
  if (has_block_mask(p)) check_block_lists(params.block_mask, blocked_scores(p));
  return params;
}

}  // namespace tilewise::operations::kv_cache
