// From a linear problem to steps of portable kernels: a product, and what adds up its parts where tiles are few; in the
// backward pass the gradient of what the activation is given, where there is one, and a launch for each gradient. A
// pure function of the problem and the device's description. See PortableRow.
#pragma once

#include "backends/portable/row.hpp"
#include "core/device_description.hpp"
#include "gpu/lowering.hpp"
#include "operations/linear/linear.hpp"

namespace tilewise::backends::portable {

using gpu::Outcome;

template <>
struct Portable<operations::Linear> {
  static operations::linear::FeatureSet features();
  static Outcome lower(const LinearProblem& problem, const core::DeviceDescription& device, gpu::Family family);
  static bool is_aligned(const operations::linear::LinearParams& call);
  static double emulated_us(const LinearProblem& problem);
};

}  // namespace tilewise::backends::portable
