// The limits of an attention problem.
#pragma once

#include "core/visibility.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::operations::attention {

/// Throws unless `dtype` is one that attention takes: f32, bf16, f16, f64 or, forward alone, fp8 e4m3. The message
/// lists those that it takes on the device.
TILEWISE_INTERNAL void validate_dtype(Operation operation, DType dtype, DeviceType device);
/// Throws unless there are heads, and as many query heads as the key heads serve.
void validate_head_counts(const AttentionProblem& problem);

/// As tilewise::validate().
void validate(const AttentionProblem& problem);

}  // namespace tilewise::operations::attention
