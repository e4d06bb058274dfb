// Judges attention problems for a GPU.
#include "backends/portable/attention/implementation.hpp"

#include "backends/portable/attention/schedule.hpp"
#include "core/message.hpp"
#include "gpu/architectures.hpp"
#include "gpu/lowered_kernel.hpp"

namespace tilewise::backends::portable {

operations::attention::FeatureSet AttentionImplementation::supported() const noexcept { return attention_features(); }

core::Verdict AttentionImplementation::judge(const Problem& problem, const core::DeviceDescription& device) const {
  if (!gpu::has_family(device, family_)) {
    return core::Verdict::refuse(
        core::concat("the GPU must be one of ", gpu::traits_of(family_).title, " (got ", device.architecture, ")"));
  }
  Outcome outcome = lower(problem, device, family_);
  if (!outcome.refusal.empty()) return core::Verdict::refuse(std::move(outcome.refusal));
  const double estimated_us = outcome.lowering.estimated_us;
  return core::Verdict::accept(estimated_us, std::make_unique<gpu::LoweredKernel>(std::move(outcome.lowering),
                                                                                  find_runtime_, device.device.index));
}

std::shared_ptr<const void> AttentionImplementation::contiguous_call(const core::ProblemView& problem) const {
  return std::make_shared<const device::AttentionParams>(contiguous_params(problem.as<Problem>()));
}

}  // namespace tilewise::backends::portable
