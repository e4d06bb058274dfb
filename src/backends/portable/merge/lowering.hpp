// From a merge problem to steps of portable kernels: one launch for each kMostParts parts of a list, one for any number
// of stacked ones. A pure function of the problem and the device's description. See PortableRow.
#pragma once

#include "backends/portable/row.hpp"
#include "core/device_description.hpp"
#include "gpu/lowering.hpp"
#include "operations/merge/merge.hpp"

namespace tilewise::backends::portable {

using gpu::Outcome;

template <>
struct Portable<operations::Merge> {
  static operations::merge::FeatureSet features();
  static Outcome lower(const MergeProblem& problem, const core::DeviceDescription& device, gpu::Family family);
  static bool is_aligned(const operations::merge::MergeParams& call);
  static double emulated_us(const MergeProblem& problem);
};

}  // namespace tilewise::backends::portable
