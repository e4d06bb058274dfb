// A call as lowering and kernels want it: its problem, and the operation's parameters.
#pragma once

#include "operations/attention/call.hpp"

namespace tilewise::test {

struct DescribedCall {
  Problem problem;
  device::AttentionParams params;
};
/// Of forward or backward arguments.
template <class Arguments>
DescribedCall described_call(const Arguments& arguments) {
  const operations::attention::Call call = operations::attention::call_of(arguments);
  const Problem problem = operations::attention::describe(call);
  return {problem, operations::attention::make_params(call, problem)};
}

}  // namespace tilewise::test
