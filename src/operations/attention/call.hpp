// Call: the tensors of a forward or a backward pass under one set of names, so that describing
// them and turning them into kernel parameters is written once.
#pragma once

#include "device/common/params.h"
#include "tilewise/attention.hpp"

namespace tilewise::operations::attention {

/// Borrows from the arguments it was made of. Tensors of the other pass are undefined.
struct Call {
  Operation operation;
  const TensorView &q, &k, &v, &out, &softmax_lse;
  const TensorView &dout, &dlse, &dq, &dk, &dv, &dbias, &dsink;
  const AttentionOptions& options;

  [[nodiscard]] bool backward() const { return operation == Operation::attention_backward; }
};

[[nodiscard]] Call call_of(const ForwardArguments& arguments);
[[nodiscard]] Call call_of(const BackwardArguments& arguments);

/// The canonical Problem of a call. Checks every tensor (given, dtype, device, shape, strides,
/// data) and, on the CPU, the values of the length tensors. Allocates only to report an error. Whether tensors share
/// memory is checked on every run: the problem does not depend on it.
[[nodiscard]] AttentionProblem describe(const Call& call);

/// The sizes of a problem as kernels get them; lengths are null.
[[nodiscard]] device::AttentionShape shape_of(const AttentionProblem& problem);

/// The kernel's parameters for a call that describes to `problem`.
[[nodiscard]] device::AttentionParams make_params(const Call& call, const AttentionProblem& problem);

}  // namespace tilewise::operations::attention
