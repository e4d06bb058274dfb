// From a quantize problem to steps of portable kernels: one launch, and two before it where the whole tensor shares a
// scale. A pure function of the problem and the device's description. See PortableRow.
#pragma once

#include "backends/portable/row.hpp"
#include "core/device_description.hpp"
#include "gpu/lowering.hpp"
#include "operations/quantize/quantize.hpp"

namespace tilewise::backends::portable {

using gpu::Outcome;

template <>
struct Portable<operations::Quantize> {
  static operations::quantize::FeatureSet features();
  static Outcome lower(const QuantizeProblem& problem, const core::DeviceDescription& device, gpu::Family family);
  static bool is_aligned(const operations::quantize::QuantizeParams& call);
  static double emulated_us(const QuantizeProblem& problem);
};

}  // namespace tilewise::backends::portable
