// How long a lowered problem takes on a GPU: a model of its launches, fitted to an H200.
#pragma once

#include "backends/portable/lowering.hpp"

namespace tilewise::backends::portable {

/// Microseconds from the first launch to the end of the last. A pure function, for devices that need not be here.
[[nodiscard]] double estimate_us(const Problem& problem, const DeviceTraits& traits,
                                 const std::vector<Launch>& launches);

}  // namespace tilewise::backends::portable
