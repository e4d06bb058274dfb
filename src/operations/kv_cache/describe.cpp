// Tensors and options to a KV cache problem: which shapes, dtypes, strides and devices a call may have.
#include <algorithm>
#include <cmath>
#include <optional>

#include "core/message.hpp"
#include "operations/kv_cache/call.hpp"
#include "operations/kv_cache/names.hpp"
#include "operations/kv_cache/rules.hpp"
#include "operations/kv_cache/tensors.hpp"
#include "operations/kv_cache/validate.hpp"
#include "operations/layout.hpp"

namespace tilewise::operations::kv_cache {
namespace {

using namespace core;  // checks of tensors, and the errors they throw

/// Fills a problem from a call, one group of tensors after another.
class Describer {
 public:
  explicit Describer(const Call& call)
      : call_(call), options_(call.options), device_(anchor().device), anchor_(call.appends_alone() ? "k" : "q") {}

  KvCacheProblem describe() {
    p_.call = call_.which;
    p_.device = device_.type;
    p_.layout = call_.packed() ? Layout::thd : Layout::bshd;
    p_.append = call_.appends();
    describe_data();
    describe_caches();
    describe_new_keys();
    describe_places();
    describe_scales();
    describe_rotary();
    if (!call_.appends_alone()) describe_attention();
    refuse_what_append_has_no_use_for();
    describe_alignment();
    return canonical(p_);
  }

 private:
  [[nodiscard]] const TensorView& anchor() const { return call_.appends_alone() ? call_.k : call_.q; }
  [[nodiscard]] bool packed() const { return p_.layout == Layout::thd; }
  [[nodiscard]] Dim head_dim() const { return {"head_dim", p_.head_dim}; }
  [[nodiscard]] Dim head_dim_v() const { return {"head_dim_v", p_.head_dim_v}; }
  [[nodiscard]] Dim heads_k() const { return {"num_heads_k", p_.num_heads_k}; }
  [[nodiscard]] Dim batch() const { return {"batch_size", p_.batch_size}; }
  [[nodiscard]] Dim rows_q() const { return packed() ? Dim{"total_q", p_.total_q} : Dim{"seqlen_q", p_.seqlen_q}; }
  [[nodiscard]] Dim rows_new() const {
    return packed() ? Dim{"total_k_new", p_.total_k_new} : Dim{"seqlen_k_new", p_.seqlen_k_new};
  }
  [[nodiscard]] Shape rows_shape(Dim rows, Dim heads, Dim dim) const {
    return tensor_shape(p_.layout, batch(), rows, heads, dim);
  }

  void check_typed(const TensorView& view, std::string_view name, DType dtype) const {
    check_view(view, name, device_, anchor_);
    check_dtype(view, name, dtype);
  }
  void check_rows(const TensorView& view, std::string_view name, DType dtype, const Shape& shape,
                  Access access = Access::read) const {
    check_typed(view, name, dtype);
    check_shape(view, name, shape);
    check_contiguous_last(view, name, access);
  }
  void check_lengths(const TensorView& view, std::string_view name, const Shape& shape) const {
    check_rows(view, name, DType::i32, shape);
  }

  /// q, or what stands for it in append_kv: the dtype, and rows of the batch.
  void describe_data() {
    const TensorView& data = anchor();
    if (data.defined()) validate_dtype(anchor_, data.dtype, device_.type);
    check_view(data, anchor_, device_, anchor_);
    const Axes axes = axes_of(p_.layout);
    check_rank(data, anchor_, axes.rank(), packed() ? "[total, heads, dim]" : "[batch_size, seqlen, heads, dim]");
    check_contiguous_last(data, anchor_);
    p_.dtype = data.dtype;
    p_.head_dim = size_at(data, axes.dim);
    if (packed()) {
      p_.batch_size = describe_cu_seqlens();
    } else {
      p_.batch_size = size_at(data, axes.batch);
    }
    if (call_.appends_alone()) return;
    p_.num_heads_q = size_at(data, axes.head);
    (packed() ? p_.total_q : p_.seqlen_q) = size_at(data, axes.seq);
    if (packed()) p_.seqlen_q = options_.max_seqlen_q.value_or(p_.total_q);
    if (!packed() && options_.max_seqlen_q) invalid_argument("max_seqlen_q: requires cu_seqlens_q (got none)");
  }

  /// The batch size that cu_seqlens tell; without any, new keys alone are one sequence.
  [[nodiscard]] std::int64_t describe_cu_seqlens() const {
    const bool alone = call_.appends_alone();
    if (!alone && !options_.cu_seqlens_q.defined()) {
      invalid_argument("cu_seqlens_q: must be given with cu_seqlens_k_new (got none)");
    }
    if (alone && options_.cu_seqlens_q.defined()) invalid_argument("cu_seqlens_q: belongs to kv_cache_attention");
    const TensorView& cu = alone ? options_.cu_seqlens_k_new : options_.cu_seqlens_q;
    if (!cu.defined()) return 1;
    const std::string_view name = alone ? "cu_seqlens_k_new" : "cu_seqlens_q";
    check_rank(cu, name, 1, "[batch_size + 1]");
    if (cu.shape[0] < 1) invalid_argument(name, ": must have batch_size + 1 >= 1 elements (got 0)");
    check_lengths(cu, name, {{"batch_size + 1", cu.shape[0]}});
    return cu.shape[0] - 1;
  }

  void describe_caches() {
    const TensorView& k = call_.k_cache;
    check_view(k, "k_cache", device_, anchor_);
    validate_cache_dtype(p_.dtype, k.dtype);
    p_.cache_dtype = k.dtype;
    check_rank(k, "k_cache", 4, "[batch_size or num_pages, capacity or page_size, num_heads_k, head_dim]");
    check_contiguous_last(k, "k_cache", Access::mutate);
    p_.num_heads_k = size_at(k, 2);
    if (call_.appends_alone()) p_.num_heads_q = p_.num_heads_k;
    validate_head_counts(p_);
    const bool paged = options_.block_table.defined() || options_.slots.defined();
    (paged ? p_.num_pages : p_.batch_size_cache) = size_at(k, 0);
    (paged ? p_.page_size : p_.capacity) = size_at(k, 1);
    if (paged && p_.page_size < 1) invalid_argument("k_cache: page_size must be >= 1 (got ", p_.page_size, ")");
    if (paged) p_.batch_size_cache = 1;
    if (size_at(k, 3) != p_.head_dim) {
      invalid_argument("k_cache: head_dim must be that of ", anchor_, ", ", p_.head_dim, " (got ", size_at(k, 3), ")");
    }
    describe_value_cache(paged);
    if (!p_.append) return;
    check_writable(k, "k_cache");
    if (!p_.mla) check_writable(call_.v_cache, "v_cache");
  }

  void describe_value_cache(bool paged) {
    p_.mla = !call_.v_cache.defined();
    if (p_.mla) {
      if (call_.appends_alone()) {
        p_.head_dim_v = options_.head_dim_v.value_or(std::min<std::int64_t>(p_.head_dim, 512));
        return;
      }
      if (!options_.head_dim_v) invalid_argument("head_dim_v: must be given without a v_cache (got none)");
      p_.head_dim_v = *options_.head_dim_v;
      return;
    }
    const TensorView& v = call_.v_cache;
    check_typed(v, "v_cache", p_.cache_dtype);
    check_rank(v, "v_cache", 4, "as k_cache, with head_dim_v");
    p_.head_dim_v = size_at(v, 3);
    check_rows(v, "v_cache", p_.cache_dtype,
               {{paged ? "num_pages" : "batch_size", size_at(call_.k_cache, 0)},
                {paged ? "page_size" : "capacity", size_at(call_.k_cache, 1)},
                heads_k(),
                head_dim_v()},
               Access::mutate);
    if (options_.head_dim_v && *options_.head_dim_v != p_.head_dim_v) {
      invalid_argument("head_dim_v: must be that of v_cache, ", p_.head_dim_v, " (got ", *options_.head_dim_v, ")");
    }
  }

  void describe_new_keys() {
    const TensorView &k = call_.k, &v = call_.v, &cu = options_.cu_seqlens_k_new;
    if (!p_.append) {
      if (v.defined()) invalid_argument("v: requires k (got v alone)");
      if (cu.defined()) invalid_argument("cu_seqlens_k_new: requires new keys, k (got none)");
      if (options_.max_seqlen_k_new) invalid_argument("max_seqlen_k_new: requires new keys, k (got none)");
      return;
    }
    const Axes axes = axes_of(p_.layout);
    check_typed(k, "k", p_.dtype);
    check_rank(k, "k", axes.rank(), packed() ? "[total_k_new, num_heads_k, head_dim]" : "four dimensions");
    (packed() ? p_.total_k_new : p_.seqlen_k_new) = size_at(k, axes.seq);
    if (cu.defined()) check_lengths(cu, "cu_seqlens_k_new", {{"batch_size + 1", p_.batch_size + 1}});
    if (packed())
      p_.seqlen_k_new =
          cu.defined() || !call_.appends_alone() ? options_.max_seqlen_k_new.value_or(p_.total_k_new) : p_.total_k_new;
    if (!packed() && options_.max_seqlen_k_new) {
      invalid_argument("max_seqlen_k_new: requires cu_seqlens_k_new (got none)");
    }
    check_rows(k, "k", p_.dtype, rows_shape(rows_new(), heads_k(), head_dim()));
    if (p_.mla) {
      if (v.defined()) invalid_argument("v: excludes a call without v_cache, whose values are columns of the keys");
      return;
    }
    if (!v.defined()) invalid_argument("v: must be given with k (got k alone)");
    check_rows(v, "v", p_.dtype, rows_shape(rows_new(), heads_k(), head_dim_v()));
  }

  void describe_places() {
    const KvCacheOptions& o = options_;
    p_.cache_seqlens = o.cache_seqlens.defined();
    p_.cache_batch_idx = o.cache_batch_idx.defined();
    p_.cache_leftpad = o.cache_leftpad.defined();
    if (p_.cache_seqlens) check_lengths(o.cache_seqlens, "cache_seqlens", {batch()});
    if (p_.cache_batch_idx) check_lengths(o.cache_batch_idx, "cache_batch_idx", {batch()});
    if (p_.cache_leftpad) check_lengths(o.cache_leftpad, "cache_leftpad", {batch()});
    if (p_.cache_seqlens && o.cache_seqlen) invalid_argument("cache_seqlens: must be a tensor or a number (got both)");
    if (o.slots.defined()) return describe_slots();
    if (p_.append && !p_.cache_seqlens && !o.cache_seqlen) {
      invalid_argument("cache_seqlens: must be given with new keys, k (got none)");
    }
    if (!o.block_table.defined()) return;
    check_rank(o.block_table, "block_table", 2, "[batch_size, max_pages_per_seq]");
    p_.max_pages_per_seq = o.block_table.shape[1];
    check_lengths(o.block_table, "block_table", {batch(), {"max_pages_per_seq", p_.max_pages_per_seq}});
  }

  void describe_slots() {
    const TensorView& slots = options_.slots;
    if (options_.cache_seqlen) invalid_argument("cache_seqlens: excludes slots (got both)");
    if (options_.block_table.defined()) invalid_argument("block_table: excludes slots (got both)");
    check_view(slots, "slots", device_, anchor_);
    if (slots.dtype != DType::i32 && slots.dtype != DType::i64) {
      invalid_type("slots: dtype must be i32 or i64 (got ", to_string(slots.dtype), ")");
    }
    p_.slots = slots.dtype == DType::i64 ? SlotKind::i64 : SlotKind::i32;
    check_shape(slots, "slots", packed() ? Shape{rows_new()} : Shape{batch(), rows_new()});
  }

  /// none where neither tensor nor number is given.
  [[nodiscard]] CacheScales scales_kind(const TensorView& view, std::string_view name,
                                        const std::optional<double>& number, const TensorView& cache) const {
    if (number) {
      if (view.defined()) invalid_argument(name, ": must be a tensor or a number (got both)");
      if (!(*number > 0.0 && std::isfinite(static_cast<float>(*number)))) {
        invalid_argument(name, ": must be positive and finite in f32 (got ", *number, ")");
      }
      return CacheScales::tensor;
    }
    if (!view.defined()) return CacheScales::none;
    check_typed(view, name, DType::f32);
    if (view.rank == 0) return CacheScales::tensor;
    if (view.rank == 1 && view.shape[0] == 1 && p_.num_heads_k != 1) return CacheScales::tensor;
    if (view.rank == 1) {
      check_shape(view, name, {heads_k()});
      return CacheScales::head;
    }
    if (view.rank == 2) {
      check_shape(view, name, {batch(), heads_k()});
      return CacheScales::batch_head;
    }
    check_shape(view, name, {{"as the cache", size_at(cache, 0)}, {"as the cache", size_at(cache, 1)}, heads_k()});
    if (p_.append) check_writable(view, name);
    return CacheScales::token;
  }

  void describe_scales() {
    const KvCacheOptions& o = options_;
    p_.scales = scales_kind(o.k_scale, "k_scale", o.k_scale_value, call_.k_cache);
    if (p_.mla) {
      if (o.v_scale.defined() || o.v_scale_value) invalid_argument("v_scale: requires a v_cache (got none)");
      return;
    }
    const CacheScales values = scales_kind(o.v_scale, "v_scale", o.v_scale_value, call_.v_cache);
    if (values != p_.scales) {
      invalid_argument("v_scale: must be of k_scale's kind, ", name_of(p_.scales), " (got ", name_of(values), ")");
    }
  }

  void describe_rotary() {
    const KvCacheOptions& o = options_;
    p_.rotary_interleaved = o.rotary_interleaved;
    p_.rotary_offset = o.rotary_offset;
    p_.rotary_seqlens = o.rotary_seqlens.defined();
    if (p_.rotary_seqlens) check_lengths(o.rotary_seqlens, "rotary_seqlens", {batch()});
    const TensorView &cos = o.rotary_cos, &sin = o.rotary_sin;
    if (cos.defined() != sin.defined()) {
      invalid_argument(cos.defined() ? "rotary_sin" : "rotary_cos", ": must be given with the other table (got none)");
    }
    if (!cos.defined()) return;
    check_view(cos, "rotary_cos", device_, anchor_);
    if (cos.dtype != DType::f32 && cos.dtype != p_.dtype) {
      invalid_type("rotary_cos: dtype must be f32 or that of ", anchor_, ", ", to_string(p_.dtype), " (got ",
                   to_string(cos.dtype), ")");
    }
    p_.rotary = cos.dtype == DType::f32 ? RotaryKind::f32 : RotaryKind::query;
    check_rank(cos, "rotary_cos", 2, "[rows, rotary_dim / 2]");
    check_contiguous_last(cos, "rotary_cos");
    // Kernels on GPUs clamp positions to the tables, so there must be a row.
    if (cos.shape[0] < 1) invalid_argument("rotary_cos: must have >= 1 row (got 0)");
    p_.rotary_dim = 2 * cos.shape[1];
    check_rows(sin, "rotary_sin", cos.dtype, {{"rows", cos.shape[0]}, {"rotary_dim / 2", cos.shape[1]}});
  }

  void describe_attention() {
    const Dim heads{"num_heads_q", p_.num_heads_q};
    check_rows(call_.out, "out", p_.dtype, rows_shape(rows_q(), heads, head_dim_v()), Access::write);
    check_writable(call_.out, "out");
    p_.softmax_lse = call_.softmax_lse.defined();
    if (p_.softmax_lse) {
      check_typed(call_.softmax_lse, "softmax_lse", DType::f32);
      check_shape(call_.softmax_lse, "softmax_lse",
                  packed() ? Shape{heads, rows_q()} : Shape{batch(), heads, rows_q()});
      check_writable(call_.softmax_lse, "softmax_lse");
    }
    p_.mask = value_at<Mask>("mask", static_cast<std::int64_t>(options_.mask));
    p_.window_left = options_.window_left;
    p_.window_right = options_.window_right;
    p_.softmax_scale = options_.softmax_scale.value_or(default_softmax_scale(p_.head_dim));
    p_.softcap = options_.softcap;
    p_.num_splits = options_.num_splits;
    p_.batch_invariant = options_.batch_invariant;
    describe_head_options(heads);
  }

  void describe_head_options(Dim heads) {
    if (const TensorView& slopes = options_.alibi_slopes; slopes.defined()) {
      const bool per_batch = slopes.rank == 2;
      p_.alibi_slopes = per_batch ? AlibiKind::per_batch_head : AlibiKind::per_head;
      check_typed(slopes, "alibi_slopes", DType::f32);
      check_shape(slopes, "alibi_slopes", per_batch ? Shape{batch(), heads} : Shape{heads});
    }
    const TensorView& sink = options_.sink;
    if (!sink.defined()) return;
    check_view(sink, "sink", device_, anchor_);
    if (sink.dtype != DType::f32 && sink.dtype != p_.dtype) {
      invalid_type("sink: dtype must be f32 or that of q, ", to_string(p_.dtype), " (got ", to_string(sink.dtype), ")");
    }
    p_.sink = sink.dtype == DType::f32 ? SinkKind::f32 : SinkKind::query;
    check_shape(sink, "sink", {heads});
  }

  void refuse_what_append_has_no_use_for() const {
    if (!call_.appends_alone()) {
      if (options_.slots.defined()) invalid_argument("slots: belongs to append_kv (got it in kv_cache_attention)");
      return;
    }
    const KvCacheOptions& o = options_;
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
  }

  /// Kernels of other devices move rows 16 bytes at a time where they may.
  void describe_alignment() {
    if (device_.type == DeviceType::cpu) return;
    for (const TensorView* view : {&call_.q, &call_.k_cache, &call_.v_cache, &call_.k, &call_.v, &call_.out}) {
      p_.unaligned |= view->defined() && !rows_start_on_16_bytes(*view);
    }
    if (!rotates_in_chunks(p_.rotary_dim, p_.rotary_offset)) return;
    for (const TensorView* view : {&options_.rotary_cos, &options_.rotary_sin}) {
      p_.unaligned |= !rows_start_on_16_bytes(*view);
    }
  }

  const Call& call_;
  const KvCacheOptions& options_;
  Device device_;
  std::string_view anchor_;  ///< its device is the call's
  KvCacheProblem p_;
};

const TensorView kNotGiven;

}  // namespace

Call call_of(const KvCacheArguments& a) {
  return {KvCacheCall::kv_cache_attention, a.q, a.k_cache, a.v_cache, a.k, a.v, a.out, a.softmax_lse, a.options};
}

Call call_of(const AppendKvArguments& a) {
  const TensorView& none = kNotGiven;
  return {KvCacheCall::append_kv, none, a.k_cache, a.v_cache, a.k, a.v, none, none, a.options};
}

KvCacheProblem describe(const Call& call) { return Describer(call).describe(); }

}  // namespace tilewise::operations::kv_cache
