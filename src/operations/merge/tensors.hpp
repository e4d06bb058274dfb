// The one list of a merge call's tensors, with what the call does with each. Roles of parts repeat.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "core/tensor_checks.hpp"
#include "operations/merge/call.hpp"
#include "tilewise/merge.hpp"

namespace tilewise::operations::merge {

/// Calls visit(name, view, access) for every tensor, given or not.
template <typename Visit>
void for_each_tensor(const Call& call, Visit&& visit) {
  using enum core::Access;
  // Structured bindings name every member, so that a new one does not compile until it is looked at here.
  [[maybe_unused]] const auto& [pass, outs, lses, sink, out, softmax_lse, dout, dlse, douts, dlses, dsink, layout] =
      call;
  const auto visit_all = [&visit, one = call.stacked()](std::string_view role, std::span<const TensorView> views,
                                                        core::Access access) {
    for (std::size_t n = 0; n < views.size(); ++n)
      visit(one ? core::ArgumentName(role) : core::ArgumentName(role, n), views[n], access);
  };
  visit("out", out, write);
  visit("softmax_lse", softmax_lse, write);
  visit_all("douts", douts, write);
  visit_all("dlses", dlses, write);
  visit("dsink", dsink, write);
  visit("sink", sink, read);
  visit("dout", dout, read);
  visit("dlse", dlse, read);
  visit_all("outs", outs, read);
  visit_all("lses", lses, read);
}

/// Of arguments that may be changed: calls visit(view).
template <typename Visit>
void change_each_tensor(MergeArguments& arguments, const Visit& visit) {
  [[maybe_unused]] auto& [outs, lses, sink, out, softmax_lse, layout] = arguments;
  for (std::vector<TensorView>* list : {&outs, &lses})
    for (TensorView& view : *list) visit(view);
  for (TensorView* view : {&sink, &out, &softmax_lse}) visit(*view);
}
template <typename Visit>
void change_each_tensor(MergeBackwardArguments& arguments, const Visit& visit) {
  [[maybe_unused]] auto& [dout, dlse, outs, lses, sink, douts, dlses, dsink, layout] = arguments;
  for (std::vector<TensorView>* list : {&outs, &lses, &douts, &dlses})
    for (TensorView& view : *list) visit(view);
  for (TensorView* view : {&dout, &dlse, &sink, &dsink}) visit(*view);
}

/// Part n of a list, or of the one tensor [parts, ...] that is all of them.
[[nodiscard]] inline TensorView part_of(std::span<const TensorView> list, std::size_t n, bool stacked) {
  if (!stacked) return list[n];
  TensorView view = list.front();
  if (view.data != nullptr) {
    const std::int64_t offset = static_cast<std::int64_t>(n) * view.strides[0];
    view.data = static_cast<std::byte*>(view.data) + offset * static_cast<std::int64_t>(size_of(view.dtype));
  }
  --view.rank;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(view.rank); ++axis) {
    view.shape[axis] = view.shape[axis + 1];
    view.strides[axis] = view.strides[axis + 1];
  }
  return view;
}

}  // namespace tilewise::operations::merge
