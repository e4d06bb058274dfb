// From a merge problem to steps of portable kernels: one launch for each kMostParts parts of a list, one for any number
// of stacked ones. A pure function of the problem and the device's description.
#pragma once

#include "core/device_description.hpp"
#include "gpu/lowering.hpp"
#include "operations/merge/features.hpp"
#include "operations/merge/params.hpp"

namespace tilewise::backends::portable {

/// What portable kernels honour, for every family.
[[nodiscard]] operations::merge::FeatureSet merge_features();

using gpu::Outcome;

[[nodiscard]] Outcome lower(const MergeProblem& problem, const core::DeviceDescription& device, gpu::Family family);

/// Whether every row that kernels touch starts on 16 bytes.
[[nodiscard]] bool is_aligned(const operations::merge::MergeParams& call);

}  // namespace tilewise::backends::portable
