// The part of validate() that describe() needs before it has a whole Problem.
#pragma once

#include "tilewise/problem.hpp"

namespace tilewise::core {

/// Throws unless `dtype` is one that attention computes in: f32, bf16 or f16.
void validate_dtype(DType dtype);

}  // namespace tilewise::core
