// How long the Hopper backward pass takes: a model fitted to an H200.
#pragma once

#include <cstdint>

#include "core/device_description.hpp"
#include "device/hopper/config.h"
#include "tilewise/problem.hpp"

namespace tilewise::backends::hopper {

/// In microseconds, launches and what comes before and after the kernel included: a pure function.
[[nodiscard]] double backward_us(const Problem& problem, const device::HopperBwdConfig& config, std::int64_t splits,
                                 const core::DeviceDescription& device);

}  // namespace tilewise::backends::hopper
