// The limits of a merge problem.
#pragma once

#include "tilewise/merge.hpp"

namespace tilewise::operations::merge {

/// Throws unless `dtype` is one that merge computes in: f32, bf16, f16 or f64.
void validate_dtype(DType dtype);

/// As tilewise::validate().
void validate(const MergeProblem& problem);

}  // namespace tilewise::operations::merge
