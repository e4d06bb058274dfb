// Rules about a quantize problem beside its schema: what is allowed, and the one normal form.
#pragma once

#include "core/visibility.hpp"
#include "tilewise/quantize.hpp"

namespace tilewise::operations::quantize {

/// Bytes that a pass reads and writes at least.
[[nodiscard]] double bytes_moved(const QuantizeProblem& problem);

/// Throws for a format that nobody knows: what shapes of scales are asked of.
void validate_format(const QuantizeProblem& problem);
/// As tilewise::validate().
TILEWISE_INTERNAL void validate(const QuantizeProblem& problem);

/// The one form of all problems that mean the same computation: the CPU does not care how rows are aligned. Values that
/// validate() rejects are left alone.
[[nodiscard]] TILEWISE_INTERNAL QuantizeProblem canonical(QuantizeProblem problem);

}  // namespace tilewise::operations::quantize
