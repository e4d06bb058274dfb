// Which blocks of the forward pass have halves of their waves take turns at multiplying.
#pragma once

#include "backends/portable/attention/kernels.hpp"
#include "backends/portable/traits.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::portable {

/// Sets `staggered`, and what goes with it, of a forward kernel's config where that keeps matrix units busier.
void stagger(device::ForwardConfig& config, const Problem& problem, const DeviceTraits& traits);

}  // namespace tilewise::backends::portable
