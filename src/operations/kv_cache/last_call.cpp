// Which calls describe to the same problem. Structured bindings name every option, so that a new one does not compile
// until it is looked at here.
#include "operations/kv_cache/last_call.hpp"

#include <cstddef>
#include <tuple>

#include "core/recent_plan.hpp"
#include "operations/kv_cache/tensors.hpp"

namespace tilewise::operations::kv_cache {
namespace {

/// What a problem takes from the options that are no tensors.
auto scalars(const KvCacheOptions& options) {
  const auto& [rotary_cos, rotary_sin, rotary_interleaved, rotary_seqlens, rotary_offset, cache_seqlens, cache_seqlen,
               cache_batch_idx, cache_leftpad, block_table, slots, cu_seqlens_q, max_seqlen_q, cu_seqlens_k_new,
               max_seqlen_k_new, head_dim_v, k_scale, v_scale, k_scale_value, v_scale_value, mask, window_left,
               window_right, softmax_scale, softcap, alibi_slopes, sink, num_splits, batch_invariant] = options;
  // Of cache_seqlen only whether there is one: it changes with every step.
  return std::tuple(rotary_interleaved, rotary_offset, cache_seqlen.has_value(), max_seqlen_q, max_seqlen_k_new,
                    head_dim_v, k_scale_value, v_scale_value, mask, window_left, window_right, softmax_scale, softcap,
                    num_splits, batch_invariant);
}

}  // namespace

bool LastCall::is_like(const Call& call) const {
  std::size_t next = 0;
  bool like = true;
  for_each_tensor(call, [&](const core::ArgumentName&, const TensorView& view, core::Access) {
    like = like && core::same_kind(view, tensors_[next]);
    ++next;
  });
  return like && scalars(call.options) == scalars(options_);
}

bool LastCall::remember(const Call& call) {
  std::size_t next = 0;
  for_each_tensor(call,
                  [&](const core::ArgumentName&, const TensorView& view, core::Access) { tensors_[next++] = view; });
  options_ = call.options;
  return true;
}

}  // namespace tilewise::operations::kv_cache
