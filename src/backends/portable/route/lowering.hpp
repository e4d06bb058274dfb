// From a route problem to a step of portable kernels: one launch either pass. A pure function of the problem and the
// device's description. See PortableRow.
#pragma once

#include "backends/portable/row.hpp"
#include "core/device_description.hpp"
#include "gpu/lowering.hpp"
#include "operations/route/route.hpp"

namespace tilewise::backends::portable {

using gpu::Outcome;

template <>
struct Portable<operations::Route> {
  static operations::route::FeatureSet features();
  static Outcome lower(const RouteProblem& problem, const core::DeviceDescription& device, gpu::Family family);
  static double emulated_us(const RouteProblem& problem);
};

}  // namespace tilewise::backends::portable
