// The reference's row of the dispatch table for quantising: formats/quantize.hpp, both ways.
#pragma once

#include "core/implementation.hpp"

namespace tilewise::backends {

/// "reference". Accepts every valid quantize problem on the CPU, at an estimate above that of whatever is faster.
[[nodiscard]] const core::Implementation& reference_quantize_implementation();

}  // namespace tilewise::backends
