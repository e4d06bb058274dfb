// From a call to its problem, and to what kernels are launched with.
#pragma once

#include "core/visibility.hpp"
#include "device/common/params.h"
#include "operations/attention/schema.hpp"
#include "operations/derived/call.hpp"
#include "tilewise/attention.hpp"

namespace tilewise::operations::attention {

/// The tensors of a forward or a backward pass, and all options beside them.
struct Call : schema::CallOf<kSchema> {
  explicit Call(const ForwardArguments& arguments) : CallOf(arguments), options(arguments.options) {}
  explicit Call(const BackwardArguments& arguments) : CallOf(arguments), options(arguments.options) {}

  [[nodiscard]] bool backward() const { return index() == static_cast<std::size_t>(Operation::attention_backward); }

  const AttentionOptions& options;
};

template <typename Arguments>
[[nodiscard]] Call call_of(const Arguments& arguments) {
  return Call(arguments);
}

/// The canonical Problem of a call. Checks every tensor (given, dtype, device, shape, strides,
/// data) and, on the CPU, the values of the length tensors. Allocates only to report an error. Whether tensors share
/// memory is checked on every run: the problem does not depend on it.
[[nodiscard]] TILEWISE_INTERNAL AttentionProblem describe(const Call& call);

/// The sizes of a problem as kernels get them; lengths are null.
[[nodiscard]] device::AttentionShape shape_of(const AttentionProblem& problem);

/// The kernel's parameters for a call that describes to `problem`.
[[nodiscard]] TILEWISE_INTERNAL device::AttentionParams make_params(const Call& call, const AttentionProblem& problem);

}  // namespace tilewise::operations::attention
