// Routing on the CPU, forward.
#pragma once

#include "operations/route/params.hpp"

namespace tilewise::backends::cpu {

/// Any strides and floating-point dtypes. One implementation serves all processors: next to the experts' work routing
/// takes no time.
void run_route(const operations::route::RouteParams& p);

}  // namespace tilewise::backends::cpu
