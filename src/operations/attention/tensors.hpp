// The one list of an attention call's tensors, with what the call does with each.
#pragma once

#include <string_view>

#include "core/tensor_checks.hpp"
#include "operations/attention/call.hpp"
#include "tilewise/attention.hpp"

namespace tilewise::operations::attention {

// Structured bindings name every member, so that a new one does not compile until it is looked at here.

/// Calls visit(name, view, access) for the tensors among the options, given or not.
template <typename Options, typename Visit>
void for_each_option_tensor(Options& options, Visit&& visit) {
  using enum core::Access;
  [[maybe_unused]] auto& [layout, mask, alignment, window_left, window_right, softmax_scale, softcap, dropout_p, seed,
                          offset, seed_and_offset, bias, alibi_slopes, sink, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
                          max_seqlen_k, seqused_q, seqused_k, leftpad_k, deterministic, batch_invariant] = options;
  visit("seed_and_offset", seed_and_offset, read);
  visit("bias", bias, read);
  visit("alibi_slopes", alibi_slopes, read);
  visit("sink", sink, read);
  visit("cu_seqlens_q", cu_seqlens_q, read);
  visit("cu_seqlens_k", cu_seqlens_k, read);
  visit("seqused_q", seqused_q, read);
  visit("seqused_k", seqused_k, read);
  visit("leftpad_k", leftpad_k, read);
}

/// Likewise for every tensor but these.
template <typename Visit>
void for_each_own_tensor(const Call& call, Visit&& visit) {
  using enum core::Access;
  const auto& [operation, q, k, v, out, softmax_lse, dout, dlse, dq, dk, dv, dbias, dsink, options] = call;
  const core::Access results = call.backward() ? read : write;
  visit("q", q, read);
  visit("k", k, read);
  visit("v", v, read);
  visit("dout", dout, read);
  visit("dlse", dlse, read);
  visit("out", out, results);
  visit("softmax_lse", softmax_lse, results);
  visit("dq", dq, write);
  visit("dk", dk, write);
  visit("dv", dv, write);
  visit("dbias", dbias, write);
  visit("dsink", dsink, write);
}

template <typename Visit>
void for_each_tensor(const Call& call, Visit&& visit) {
  for_each_own_tensor(call, visit);
  for_each_option_tensor(call.options, visit);
}

/// Of arguments that may be changed: calls visit(view).
template <typename Visit>
void change_each_tensor(ForwardArguments& arguments, const Visit& visit) {
  auto& [q, k, v, out, softmax_lse, options] = arguments;
  for (TensorView* view : {&q, &k, &v, &out, &softmax_lse}) visit(*view);
  for_each_option_tensor(options, [&visit](std::string_view, TensorView& view, core::Access) { visit(view); });
}
template <typename Visit>
void change_each_tensor(BackwardArguments& arguments, const Visit& visit) {
  auto& [dout, dlse, q, k, v, out, softmax_lse, dq, dk, dv, dbias, dsink, options] = arguments;
  for (TensorView* view : {&dout, &dlse, &q, &k, &v, &out, &softmax_lse, &dq, &dk, &dv, &dbias, &dsink}) visit(*view);
  for_each_option_tensor(options, [&visit](std::string_view, TensorView& view, core::Access) { visit(view); });
}

}  // namespace tilewise::operations::attention
