// From a problem of experts to steps of portable kernels: pairs sorted by expert, both products over tiles of each
// expert's rows, and a sum of each token's parts; in the backward pass the first product again, and a launch for each
// gradient. A pure function of the problem and the device's description. See PortableRow.
#pragma once

#include "backends/portable/row.hpp"
#include "core/device_description.hpp"
#include "gpu/lowering.hpp"
#include "operations/moe/moe.hpp"

namespace tilewise::backends::portable {

using gpu::Outcome;

template <>
struct Portable<operations::Moe> {
  static operations::moe::FeatureSet features();
  static Outcome lower(const MoeProblem& problem, const core::DeviceDescription& device, gpu::Family family);
  static bool is_aligned(const operations::moe::MoeParams& call);
  static double emulated_us(const MoeProblem& problem);
};

}  // namespace tilewise::backends::portable
