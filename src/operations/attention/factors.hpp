// The numbers of a score's formula: what a problem may say, and what kernels compute with.
#pragma once

#include "core/visibility.hpp"
#include "device/common/params.h"
#include "tilewise/problem.hpp"

namespace tilewise::operations::attention {

/// Throws where a number makes no sense, or vanishes in what kernels compute in.
void validate_factors(const AttentionProblem& problem);

/// Rounded to f32, unless q is f64.
[[nodiscard]] TILEWISE_INTERNAL device::ScoreFactors score_factors(const AttentionProblem& problem);

/// The same in single precision.
void set_factors(const device::ScoreFactors& factors, device::ScoreParams& params);

}  // namespace tilewise::operations::attention
