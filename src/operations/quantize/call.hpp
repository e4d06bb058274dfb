// A call of quantize or dequantize to its problem, and to the parameters of its implementations.
#pragma once

#include "core/visibility.hpp"
#include "operations/quantize/params.hpp"
#include "operations/quantize/schema.hpp"

namespace tilewise::operations::quantize {

/// In its normal form. Throws Error naming the first bad argument.
[[nodiscard]] TILEWISE_INTERNAL QuantizeProblem describe(const Call& call);

/// The parameters of a call that describes to `problem`.
[[nodiscard]] TILEWISE_INTERNAL QuantizeParams make_params(const Call& call, const QuantizeProblem& problem);

}  // namespace tilewise::operations::quantize
