// The backward pass of expert layers on Hopper's own instructions.
#pragma once

#include "core/device_description.hpp"
#include "gpu/lowering.hpp"
#include "tilewise/moe.hpp"

namespace tilewise::backends::hopper {

/// Of a problem that both passes' rules allow.
[[nodiscard]] gpu::Outcome lower_moe_backward(const MoeProblem& problem, const core::DeviceDescription& device);

}  // namespace tilewise::backends::hopper
