// Routing in double precision: the oracle. Scores are rounded to fp32 before they are compared, as every kernel does.
#pragma once

#include "operations/route/params.hpp"

namespace tilewise::backends::reference {

void route_forward(const operations::route::RouteParams& p);

/// Writes dlogits for the chosen experts that topk_ids names. An id that is no expert counts for nothing.
void route_backward(const operations::route::RouteParams& p);

}  // namespace tilewise::backends::reference
