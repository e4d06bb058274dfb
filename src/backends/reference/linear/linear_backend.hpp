// The reference's row of the dispatch table for linear layers: docs/semantics.md in code, both passes.
#pragma once

#include "core/implementation.hpp"

namespace tilewise::backends {

/// "reference". Accepts every valid linear problem on the CPU, at an estimate above that of whatever is faster.
[[nodiscard]] const core::Implementation& reference_linear_implementation();

}  // namespace tilewise::backends
