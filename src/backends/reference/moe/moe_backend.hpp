// The reference's row of the dispatch table for experts: docs/semantics.md in code, both passes.
#pragma once

#include "core/implementation.hpp"

namespace tilewise::backends {

/// "reference". Accepts every valid problem of experts on the CPU, at an estimate above that of whatever is faster.
[[nodiscard]] const core::Implementation& reference_moe_implementation();

}  // namespace tilewise::backends
