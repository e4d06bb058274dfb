// Judges KV cache problems for a GPU, and describes contiguous calls.
#include "backends/portable/kv_cache/implementation.hpp"

#include <memory>
#include <vector>

#include "gpu/lowered_kernel.hpp"
#include "operations/kv_cache/rules.hpp"
#include "operations/kv_cache/tensors.hpp"

namespace tilewise::backends::portable {
namespace {

/// The tensors of a call as contiguous views, on stand-ins.
class ContiguousCall {
 public:
  explicit ContiguousCall(const KvCacheProblem& problem) : p_(problem) {}

  [[nodiscard]] gpu::DescribedCall describe() const {
    KvCacheArguments a;
    a.k_cache = cache(p_.head_dim);
    if (!p_.mla) a.v_cache = cache(p_.head_dim_v);
    if (p_.append) {
      a.k = rows(p_.seqlen_k_new, p_.total_k_new, p_.num_heads_k, p_.head_dim);
      if (!p_.mla) a.v = rows(p_.seqlen_k_new, p_.total_k_new, p_.num_heads_k, p_.head_dim_v);
    }
    set_options(a.options);
    if (operations::kv_cache::appends_alone(p_)) {
      const AppendKvArguments append{a.k_cache, a.v_cache, a.k, a.v, a.options};
      return described(append);
    }
    a.q = rows(p_.seqlen_q, p_.total_q, p_.num_heads_q, p_.head_dim);
    a.out = rows(p_.seqlen_q, p_.total_q, p_.num_heads_q, p_.head_dim_v);
    if (p_.softmax_lse) {
      a.softmax_lse = operations::kv_cache::is_packed(p_)
                          ? TensorView(nullptr, DType::f32, {p_.num_heads_q, p_.total_q})
                          : TensorView(nullptr, DType::f32, {p_.batch_size, p_.num_heads_q, p_.seqlen_q});
    }
    return described(a);
  }

 private:
  template <typename Arguments>
  [[nodiscard]] gpu::DescribedCall described(const Arguments& arguments) const {
    namespace kv_cache = operations::kv_cache;
    return gpu::describe_call(
        arguments, [](Arguments& a, const auto& visit) { kv_cache::change_each_tensor(a, visit); },
        [](const Arguments& a, const auto& visit) { kv_cache::for_each_tensor(kv_cache::call_of(a), visit); },
        [this](const Arguments& a) { return kv_cache::make_params(kv_cache::call_of(a), p_); });
  }
  [[nodiscard]] TensorView rows(std::int64_t seqlen, std::int64_t total, std::int64_t heads, std::int64_t dim) const {
    if (operations::kv_cache::is_packed(p_)) return {nullptr, p_.dtype, {total, heads, dim}};
    return {nullptr, p_.dtype, {p_.batch_size, seqlen, heads, dim}};
  }
  [[nodiscard]] TensorView cache(std::int64_t dim) const {
    if (operations::kv_cache::is_paged(p_)) {
      return {nullptr, p_.cache_dtype, {p_.num_pages, p_.page_size, p_.num_heads_k, dim}};
    }
    return {nullptr, p_.cache_dtype, {p_.batch_size_cache, p_.capacity, p_.num_heads_k, dim}};
  }
  [[nodiscard]] TensorView scale() const {
    switch (p_.scales) {
      case CacheScales::none:
        return {};
      case CacheScales::tensor:
        return {nullptr, DType::f32, {1}};
      case CacheScales::head:
        return {nullptr, DType::f32, {p_.num_heads_k}};
      case CacheScales::batch_head:
        return {nullptr, DType::f32, {p_.batch_size, p_.num_heads_k}};
      case CacheScales::token:
        break;
    }
    const TensorView of = cache(1);
    return {nullptr, DType::f32, {of.shape[0], of.shape[1], of.shape[2]}};
  }

  [[nodiscard]] TensorView lengths(bool given, std::int64_t count) const {
    return given ? TensorView(nullptr, DType::i32, {count}) : TensorView{};
  }
  void set_lengths(KvCacheOptions& o) const {
    const bool packed = operations::kv_cache::is_packed(p_), attends = !operations::kv_cache::appends_alone(p_);
    o.cu_seqlens_q = lengths(packed && attends, p_.batch_size + 1);
    o.cu_seqlens_k_new = lengths(packed && p_.append, p_.batch_size + 1);
    o.cache_seqlens = lengths(p_.cache_seqlens, p_.batch_size);
    o.cache_batch_idx = lengths(p_.cache_batch_idx, p_.batch_size);
    o.cache_leftpad = lengths(p_.cache_leftpad, p_.batch_size);
    o.rotary_seqlens = lengths(p_.rotary_seqlens, p_.batch_size);
  }

  /// Tensors alone: make_params() takes every other option from the problem.
  void set_options(KvCacheOptions& o) const {
    set_lengths(o);
    o.k_scale = scale();
    if (!p_.mla) o.v_scale = scale();
    if (p_.rotary != RotaryKind::none) {
      const DType dtype = operations::kv_cache::rotary_dtype(p_);
      o.rotary_cos = o.rotary_sin = {nullptr, dtype, {operations::kv_cache::capacity_of(p_), p_.rotary_dim / 2}};
    }
    if (p_.slots != SlotKind::none) {
      const DType dtype = p_.slots == SlotKind::i64 ? DType::i64 : DType::i32;
      o.slots = operations::kv_cache::is_packed(p_) ? TensorView(nullptr, dtype, {p_.total_k_new})
                                                    : TensorView(nullptr, dtype, {p_.batch_size, p_.seqlen_k_new});
    } else if (operations::kv_cache::is_paged(p_)) {
      o.block_table = {nullptr, DType::i32, {p_.batch_size, p_.max_pages_per_seq}};
    }
    if (p_.alibi_slopes == AlibiKind::per_head) o.alibi_slopes = {nullptr, DType::f32, {p_.num_heads_q}};
    if (p_.alibi_slopes == AlibiKind::per_batch_head) {
      o.alibi_slopes = {nullptr, DType::f32, {p_.batch_size, p_.num_heads_q}};
    }
    if (p_.sink != SinkKind::none) o.sink = {nullptr, operations::kv_cache::sink_dtype(p_), {p_.num_heads_q}};
  }

  const KvCacheProblem& p_;
};

}  // namespace

core::Verdict KvCacheImplementation::judge(const KvCacheProblem& problem, const core::DeviceDescription& device) const {
  return gpu::judge_lowered(device, family_, find_runtime_, [&] { return lower(problem, device, family_); });
}

gpu::DescribedCall KvCacheImplementation::contiguous_call(const core::ProblemView& problem) const {
  return ContiguousCall(problem.as<KvCacheProblem>()).describe();
}

}  // namespace tilewise::backends::portable
