// From an attention problem to a launch of the Hopper forward kernel: a pure function of the problem and the device.
#pragma once

#include <string>

#include "core/device_description.hpp"
#include "gpu/lowering.hpp"
#include "operations/attention/features.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::hopper {

[[nodiscard]] operations::attention::FeatureSet attention_features();

/// A lowering, or why there is none for a problem whose features these kernels have.
struct Outcome {
  gpu::Lowering lowering;
  std::string refusal;
};
[[nodiscard]] Outcome lower(const Problem& problem, const core::DeviceDescription& device);

}  // namespace tilewise::backends::hopper
