// A call of linear layers to its problem, and to the parameters of its implementations.
#pragma once

#include "core/visibility.hpp"
#include "operations/linear/params.hpp"
#include "operations/linear/schema.hpp"

namespace tilewise::operations::linear {

/// In its normal form. Throws Error naming the first bad argument.
[[nodiscard]] TILEWISE_INTERNAL LinearProblem describe(const Call& call);

/// The parameters of a call that describes to `problem`.
[[nodiscard]] TILEWISE_INTERNAL LinearParams make_params(const Call& call, const LinearProblem& problem);

}  // namespace tilewise::operations::linear
