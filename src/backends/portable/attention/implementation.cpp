// Judges attention problems for a GPU.
#include "backends/portable/attention/implementation.hpp"

#include "backends/portable/attention/schedule.hpp"
#include "gpu/lowered_kernel.hpp"

namespace tilewise::backends::portable {

operations::attention::FeatureSet AttentionImplementation::supported() const noexcept { return attention_features(); }

core::Verdict AttentionImplementation::judge(const Problem& problem, const core::DeviceDescription& device) const {
  return gpu::judge_lowered(device, family_, find_runtime_, [&] { return lower(problem, device, family_); });
}

gpu::DescribedCall AttentionImplementation::contiguous_call(const core::ProblemView& problem) const {
  return portable::contiguous_call(problem.as<Problem>());
}

}  // namespace tilewise::backends::portable
