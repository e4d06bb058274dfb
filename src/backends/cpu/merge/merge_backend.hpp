// The CPU's row of the dispatch table for merge.
#pragma once

#include "core/implementation.hpp"

namespace tilewise::backends {

/// "cpu.generic": memory is what merging waits for, so that one row serves all processors.
[[nodiscard]] const core::Implementation& cpu_merge_implementation();

}  // namespace tilewise::backends
