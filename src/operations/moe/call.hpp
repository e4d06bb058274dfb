// A call of experts to its problem, and to the parameters of its implementations.
#pragma once

#include "core/visibility.hpp"
#include "operations/moe/params.hpp"
#include "operations/moe/schema.hpp"

namespace tilewise::operations::moe {

/// In its normal form. Throws Error naming the first bad argument.
[[nodiscard]] TILEWISE_INTERNAL MoeProblem describe(const Call& call);

/// The parameters of a call that describes to `problem`.
[[nodiscard]] TILEWISE_INTERNAL MoeParams make_params(const Call& call, const MoeProblem& problem);

}  // namespace tilewise::operations::moe
