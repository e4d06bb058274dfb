// The backward pass on Hopper: what begins it, the kernel for dk, dv and the sums of dq, and the portable kernels that
// round those and sum up dsink.
#pragma once

#include <string>

#include "core/device_description.hpp"
#include "gpu/lowering.hpp"
#include "operations/attention/features.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::hopper {

/// What the backward pass honours; attention_features() has the forward pass's besides.
[[nodiscard]] operations::attention::FeatureSet backward_features();

[[nodiscard]] gpu::Outcome lower_backward(const Problem& problem, const core::DeviceDescription& device);

}  // namespace tilewise::backends::hopper
