// The parts of validate() that describe() needs before it has a whole Problem.
#pragma once

#include "tilewise/problem.hpp"

namespace tilewise::core {

/// Throws unless `dtype` is one that attention computes in: f32, bf16, f16 or f64.
void validate_dtype(DType dtype);
/// Throws unless there are heads, and as many query heads as the key heads serve.
void validate_head_counts(const Problem& problem);

}  // namespace tilewise::core
