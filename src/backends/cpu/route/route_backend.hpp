// The CPU's row of the dispatch table for route.
#pragma once

#include "core/implementation.hpp"

namespace tilewise::backends {

/// "cpu.generic": next to the experts' work routing takes no time, so that one row serves all processors.
[[nodiscard]] const core::Implementation& cpu_route_implementation();

}  // namespace tilewise::backends
