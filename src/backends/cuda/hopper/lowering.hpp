// From an attention problem to a launch of the Hopper forward kernel: a pure function of the problem and the device.
#pragma once

#include "core/device_description.hpp"
#include "gpu/lowering.hpp"
#include "operations/attention/features.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::hopper {

[[nodiscard]] operations::attention::FeatureSet attention_features();

using gpu::Outcome;

[[nodiscard]] Outcome lower(const Problem& problem, const core::DeviceDescription& device);

}  // namespace tilewise::backends::hopper
