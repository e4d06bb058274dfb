// The reference's row of the dispatch table for route: docs/semantics.md in code, both passes. Scores are rounded to
// fp32 before they are compared, as every kernel does.
#pragma once

#include "core/implementation.hpp"
#include "operations/route/params.hpp"

namespace tilewise::backends {

/// "reference". Accepts every valid route problem on the CPU, at an estimate above that of whatever is faster.
[[nodiscard]] const core::Implementation& reference_route_implementation();

namespace reference {

void route_forward(const operations::route::RouteParams& p);

/// Writes dlogits for the chosen experts that topk_ids names. An id that is no expert's counts for nothing.
void route_backward(const operations::route::RouteParams& p);

}  // namespace reference
}  // namespace tilewise::backends
