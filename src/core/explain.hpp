// What explain() says of a walk over the table, for whichever device.
#pragma once

#include "core/select.hpp"
#include "core/visibility.hpp"
#include "tilewise/plan.hpp"

namespace tilewise::core {

/// The walk for a device that need not be here. Throws where the problem is invalid, or is for another kind of device.
[[nodiscard]] TILEWISE_INTERNAL Explanation explain_for(const AnyProblem& problem, const SelectOptions& select,
                                                        const DeviceDescription& device, Whereabouts whereabouts);

}  // namespace tilewise::core
