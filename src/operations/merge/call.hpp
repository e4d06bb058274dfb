// Call: the tensors of either pass under one set of names, so that describing them and turning them into parameters
// is written once.
#pragma once

#include <span>

#include "operations/merge/params.hpp"
#include "tilewise/merge.hpp"

namespace tilewise::operations::merge {

/// Borrows from the arguments it was made of. Tensors of the other pass are undefined, lists of it empty.
struct Call {
  MergePass pass;
  std::span<const TensorView> outs, lses;
  const TensorView &sink, &out, &softmax_lse;
  const TensorView &dout, &dlse;
  std::span<const TensorView> douts, dlses;
  const TensorView& dsink;
  Layout layout;

  [[nodiscard]] bool backward() const { return pass == MergePass::merge_backward; }
  /// Whether each list holds one tensor [parts, ...]: outs[0] has a dimension more than `layout`.
  [[nodiscard]] bool stacked() const;
};

[[nodiscard]] Call call_of(const MergeArguments& arguments);
[[nodiscard]] Call call_of(const MergeBackwardArguments& arguments);

/// The canonical problem of a call. Checks every tensor (given, dtype, device, shape, strides, data). Whether tensors
/// share memory is checked on every run: the problem does not depend on it.
[[nodiscard]] MergeProblem describe(const Call& call);

/// The parameters of a call that describes to `problem`.
[[nodiscard]] MergeParams make_params(const Call& call, const MergeProblem& problem);

}  // namespace tilewise::operations::merge
