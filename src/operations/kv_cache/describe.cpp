// Tensors and options to a KV cache problem: what the schema does not say of them, which is what they say together.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "core/message.hpp"
#include "core/names.hpp"
#include "operations/derived/describe.hpp"
#include "operations/derived/shapes.hpp"
#include "operations/kv_cache/call.hpp"
#include "operations/kv_cache/rules.hpp"
#include "operations/kv_cache/validate.hpp"

namespace tilewise::operations::kv_cache {
namespace {

using core::invalid_argument, core::name_of, core::size_at;

void check_dtypes(const Call& call) {
  const std::string_view anchor = call.appends_alone() ? "k" : "q";
  const TensorView &data = call.one_at(call.anchor()), &cache = call.one("k_cache");
  if (!data.defined()) return;
  validate_dtype(anchor, data.dtype, data.device.type);
  if (cache.defined()) validate_cache_dtype(data.dtype, cache.dtype);
}

void check_packing(const Call& call) {
  const KvCacheOptions& o = call.options;
  const bool alone = call.appends_alone();
  if (alone && o.cu_seqlens_q.defined()) invalid_argument("cu_seqlens_q: belongs to kv_cache_attention");
  if (!alone && call.packed() && !o.cu_seqlens_q.defined()) {
    invalid_argument("cu_seqlens_q: must be given with cu_seqlens_k_new (got none)");
  }
  if (!call.packed() && o.max_seqlen_q) invalid_argument("max_seqlen_q: requires cu_seqlens_q (got none)");
  if (call.appends()) {
    if (!call.packed() && o.max_seqlen_k_new) {
      invalid_argument("max_seqlen_k_new: requires cu_seqlens_k_new (got none)");
    }
    return;
  }
  if (o.cu_seqlens_k_new.defined()) invalid_argument("cu_seqlens_k_new: requires new keys, k (got none)");
  if (o.max_seqlen_k_new) invalid_argument("max_seqlen_k_new: requires new keys, k (got none)");
}

void check_values_of_keys(const Call& call) {
  const TensorView &v = call.one("v"), &v_cache = call.one("v_cache");
  const std::optional<std::int64_t>& head_dim_v = call.options.head_dim_v;
  if (!v_cache.defined() && !call.appends_alone() && !head_dim_v) {
    invalid_argument("head_dim_v: must be given without a v_cache (got none)");
  }
  if (v_cache.rank == 4 && head_dim_v && *head_dim_v != size_at(v_cache, 3)) {
    invalid_argument("head_dim_v: must be that of v_cache, ", size_at(v_cache, 3), " (got ", *head_dim_v, ")");
  }
  if (!call.appends()) {
    if (v.defined()) invalid_argument("v: requires k (got v alone)");
    return;
  }
  if (v_cache.defined() && !v.defined()) invalid_argument("v: must be given with k (got k alone)");
  if (!v_cache.defined() && v.defined()) {
    invalid_argument("v: excludes a call without v_cache, whose values are columns of the keys");
  }
}

void check_places(const Call& call) {
  const KvCacheOptions& o = call.options;
  if (o.slots.defined()) {
    if (!call.appends_alone()) invalid_argument("slots: belongs to append_kv (got it in kv_cache_attention)");
    if (o.cache_seqlen || o.cache_seqlens.defined()) invalid_argument("cache_seqlens: excludes slots (got both)");
    if (o.block_table.defined()) invalid_argument("block_table: excludes slots (got both)");
  } else if (call.appends() && !o.cache_seqlens.defined() && !o.cache_seqlen) {
    invalid_argument("cache_seqlens: must be given with new keys, k (got none)");
  }
}

/// none where neither tensor nor number is given.
CacheScales scales_kind(const TensorView& view, std::string_view name, const std::optional<double>& number,
                        const TensorView& cache) {
  if (number && !(*number > 0.0 && std::isfinite(static_cast<float>(*number)))) {
    invalid_argument(name, ": must be positive and finite in f32 (got ", *number, ")");
  }
  if (!view.defined()) return number ? CacheScales::tensor : CacheScales::none;
  const bool one_head = cache.rank == 4 && size_at(cache, 2) == 1;
  if (view.rank == 0 || (view.rank == 1 && view.shape[0] == 1 && !one_head)) return CacheScales::tensor;
  return view.rank == 1 ? CacheScales::head : view.rank == 2 ? CacheScales::batch_head : CacheScales::token;
}

CacheScales scales_of(const Call& call) {
  const KvCacheOptions& o = call.options;
  const TensorView& cache = call.one("k_cache");
  const CacheScales keys = scales_kind(o.k_scale, "k_scale", o.k_scale_value, cache);
  if (!call.one("v_cache").defined()) {
    if (o.v_scale.defined() || o.v_scale_value) invalid_argument("v_scale: requires a v_cache (got none)");
    return keys;
  }
  const CacheScales values = scales_kind(o.v_scale, "v_scale", o.v_scale_value, cache);
  if (values != keys) {
    invalid_argument("v_scale: must be of k_scale's kind, ", name_of(keys), " (got ", name_of(values), ")");
  }
  return keys;
}

void check_rotary(const KvCacheOptions& o) {
  const TensorView &cos = o.rotary_cos, &sin = o.rotary_sin;
  if (cos.defined() != sin.defined()) {
    invalid_argument(cos.defined() ? "rotary_sin" : "rotary_cos", ": must be given with the other table (got none)");
  }
  if (cos.rank != 2) return;  // the schema says so, or there are none
  // Kernels on GPUs clamp positions to the tables, so there must be a row.
  if (cos.shape[0] < 1) invalid_argument("rotary_cos: must have >= 1 row (got 0)");
  core::check_shape(sin, "rotary_sin", {{"rows", cos.shape[0]}, {"rotary_dim / 2", cos.shape[1]}});
}

void refuse_what_append_has_no_use_for(const KvCacheOptions& o) {
  const auto refuse = [](bool given, std::string_view name) {
    if (given) invalid_argument(name, ": belongs to kv_cache_attention (got it in append_kv)");
  };
  refuse(o.max_seqlen_q.has_value(), "max_seqlen_q");
  refuse(o.mask != Mask::none, "mask");
  refuse(o.window_left != -1 || o.window_right != -1, "window");
  refuse(o.softmax_scale.has_value(), "softmax_scale");
  refuse(o.softcap != 0.0, "softcap");
  refuse(o.alibi_slopes.defined(), "alibi_slopes");
  refuse(o.sink.defined(), "sink");
  refuse(o.num_splits != 0, "num_splits");
  refuse(o.batch_invariant, "batch_invariant");
  refuse(!o.score_mod.empty(), "score_mod");
  refuse(!o.mask_mod.empty(), "mask_mod");
  refuse(!o.tables.empty(), "tables");
  refuse(o.key_indices.defined(), "key_indices");
  refuse(!o.block_mask.empty(), "block_mask");
}

/// What a call states, and what its tensors say beyond what each says by itself.
KvCacheProblem begun(const Call& call) {
  const KvCacheOptions& o = call.options;
  KvCacheProblem p = call.stated();
  p.layout = call.packed() ? Layout::thd : Layout::bshd;
  p.append = call.appends();
  p.mla = !call.one("v_cache").defined();
  if (o.block_table.defined() || o.slots.defined()) p.page_size = 1;  // some size: the cache says which
  p.scales = scales_of(call);
  if (o.rotary_cos.rank == 2) p.rotary_dim = 2 * o.rotary_cos.shape[1];
  if (o.alibi_slopes.defined()) {
    p.alibi_slopes = o.alibi_slopes.rank == 2 ? AlibiKind::per_batch_head : AlibiKind::per_head;
  }
  if (!o.block_mask.empty()) p.block_mask.rows = o.block_rows, p.block_mask.keys = o.block_keys;
  return p;
}

/// What has a default that follows from sizes.
void fill_in(const Call& call, KvCacheProblem& p) {
  const KvCacheOptions& o = call.options;
  const bool alone = call.appends_alone(), packed = is_packed(p);
  if (!alone && packed) p.seqlen_q = o.max_seqlen_q.value_or(p.total_q);
  if (p.append && packed) {
    const bool counted = !alone || o.cu_seqlens_k_new.defined();
    p.seqlen_k_new = counted ? o.max_seqlen_k_new.value_or(p.total_k_new) : p.total_k_new;
    if (!counted && p.batch_size != 1) {
      invalid_argument("cu_seqlens_k_new: must be given with packed keys of more than one sequence (got ", p.batch_size,
                       " sequences)");
    }
  }
  if (alone && p.mla) p.head_dim_v = o.head_dim_v.value_or(std::min<std::int64_t>(p.head_dim, 512));
  if (alone) return;
  p.mask = core::value_at<Mask>("mask", static_cast<std::int64_t>(o.mask));
  p.softmax_scale = o.softmax_scale.value_or(default_softmax_scale(p.head_dim));
}

}  // namespace

KvCacheOptions stated_options(const KvCacheProblem& problem) {
  const auto nothing = [](std::size_t, std::size_t) { return TensorView(); };
  KvCacheOptions options = schema::arguments_of<kSchema, KvCacheArguments>(problem, nothing).options;
  options.tables.clear();
  options.block_mask.clear();
  return options;
}

KvCacheProblem describe(const Call& call) {
  check_dtypes(call);
  if (call.appends_alone()) refuse_what_append_has_no_use_for(call.options);
  check_packing(call);
  check_values_of_keys(call);
  check_places(call);
  check_rotary(call.options);
  KvCacheProblem problem = schema::Describer(call, begun(call)).describe();
  fill_in(call, problem);
  return canonical(std::move(problem));
}

}  // namespace tilewise::operations::kv_cache
