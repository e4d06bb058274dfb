// The one list of an attention call's tensors, with what the call does with each.
#pragma once

#include <string_view>

#include "core/tensor_checks.hpp"
#include "operations/attention/call.hpp"
#include "operations/attention/fields.hpp"
#include "tilewise/attention.hpp"

namespace tilewise::operations::attention {

// Structured bindings name every member, so that a new one does not compile until it is looked at here.

/// Calls visit(name, view, access) for every tensor but those among the options, given or not.
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
