// The one list of a KV cache call's tensors, with what the call does with each.
#pragma once

#include "core/tensor_checks.hpp"
#include "operations/kv_cache/call.hpp"

namespace tilewise::operations::kv_cache {

/// Calls visit(name, view, access) for every tensor, given or not. Caches are changed by appending, scales per token
/// with them.
template <typename Visit>
void for_each_tensor(const Call& call, Visit&& visit) {
  using enum core::Access;
  // Structured bindings name every member, so that a new one does not compile until it is looked at here.
  [[maybe_unused]] const auto& [which, q, k_cache, v_cache, k, v, out, softmax_lse, o] = call;
  [[maybe_unused]] const auto& [rotary_cos, rotary_sin, rotary_interleaved, rotary_seqlens, rotary_offset,
                                cache_seqlens, cache_seqlen, cache_batch_idx, cache_leftpad, block_table, slots,
                                cu_seqlens_q, max_seqlen_q, cu_seqlens_k_new, max_seqlen_k_new, head_dim_v, k_scale,
                                v_scale, k_scale_value, v_scale_value, mask, window_left, window_right, softmax_scale,
                                softcap, alibi_slopes, sink, num_splits, batch_invariant] = o;
  const core::Access cache = call.appends() ? mutate : read, scale = call.writes_scales() ? mutate : read;
  visit("out", out, write);
  visit("softmax_lse", softmax_lse, write);
  visit("k_cache", k_cache, cache);
  visit("v_cache", v_cache, cache);
  visit("k_scale", k_scale, scale);
  visit("v_scale", v_scale, scale);
  visit("q", q, read);
  visit("k", k, read);
  visit("v", v, read);
  visit("rotary_cos", rotary_cos, read);
  visit("rotary_sin", rotary_sin, read);
  visit("rotary_seqlens", rotary_seqlens, read);
  visit("cache_seqlens", cache_seqlens, read);
  visit("cache_batch_idx", cache_batch_idx, read);
  visit("cache_leftpad", cache_leftpad, read);
  visit("block_table", block_table, read);
  visit("slots", slots, read);
  visit("cu_seqlens_q", cu_seqlens_q, read);
  visit("cu_seqlens_k_new", cu_seqlens_k_new, read);
  visit("alibi_slopes", alibi_slopes, read);
  visit("sink", sink, read);
}

/// Of arguments that may be changed: calls visit(view).
template <typename Visit>
void change_each_option_tensor(KvCacheOptions& o, const Visit& visit) {
  for (TensorView* view : {&o.rotary_cos, &o.rotary_sin, &o.rotary_seqlens, &o.cache_seqlens, &o.cache_batch_idx,
                           &o.cache_leftpad, &o.block_table, &o.slots, &o.cu_seqlens_q, &o.cu_seqlens_k_new, &o.k_scale,
                           &o.v_scale, &o.alibi_slopes, &o.sink}) {
    visit(*view);
  }
}
template <typename Visit>
void change_each_tensor(KvCacheArguments& arguments, const Visit& visit) {
  [[maybe_unused]] auto& [q, k_cache, v_cache, k, v, out, softmax_lse, options] = arguments;
  for (TensorView* view : {&q, &k_cache, &v_cache, &k, &v, &out, &softmax_lse}) visit(*view);
  change_each_option_tensor(options, visit);
}
template <typename Visit>
void change_each_tensor(AppendKvArguments& arguments, const Visit& visit) {
  [[maybe_unused]] auto& [k_cache, v_cache, k, v, options] = arguments;
  for (TensorView* view : {&k_cache, &v_cache, &k, &v}) visit(*view);
  change_each_option_tensor(options, visit);
}

}  // namespace tilewise::operations::kv_cache
