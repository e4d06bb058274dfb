// The reference backend's row of the dispatch table: docs/semantics.md in code, every
// feature, double accumulation, no cleverness. Every other implementation is checked against it.
#pragma once

#include "core/implementation.hpp"

namespace tilewise::backends {

/// "reference". Accepts every valid problem on the CPU, at an estimate above that of whatever is faster.
[[nodiscard]] const core::Implementation& reference_implementation();

}  // namespace tilewise::backends
