// A call of experts to its problem, and to the parameters of its implementations.
#pragma once

#include "operations/moe/params.hpp"
#include "operations/moe/schema.hpp"

namespace tilewise::operations::moe {

/// In its normal form. Throws Error naming the first bad argument.
[[nodiscard]] MoeProblem describe(const Call& call);

/// The parameters of a call that describes to `problem`.
[[nodiscard]] MoeParams make_params(const Call& call, const MoeProblem& problem);

}  // namespace tilewise::operations::moe
