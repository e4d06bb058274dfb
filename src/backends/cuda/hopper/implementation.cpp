// Judges attention problems for a Hopper GPU.
#include "backends/cuda/hopper/implementation.hpp"

#include "backends/portable/attention/lowering.hpp"
#include "core/message.hpp"
#include "gpu/architectures.hpp"
#include "gpu/lowered_kernel.hpp"

namespace tilewise::backends::hopper {

core::Verdict AttentionImplementation::judge(const Problem& problem, const core::DeviceDescription& device) const {
  if (!gpu::has_family(device, gpu::Family::sm90)) {
    return core::Verdict::refuse(core::concat("the GPU must be one of ", gpu::traits_of(gpu::Family::sm90).title,
                                              " (got ", device.architecture, ")"));
  }
  Outcome outcome = lower(problem, device);
  if (!outcome.refusal.empty()) return core::Verdict::refuse(std::move(outcome.refusal));
  const double estimated_us = outcome.lowering.estimated_us;
  return core::Verdict::accept(estimated_us, std::make_unique<gpu::LoweredKernel>(std::move(outcome.lowering),
                                                                                  find_runtime_, device.device.index));
}

std::shared_ptr<const void> AttentionImplementation::contiguous_call(const core::ProblemView& problem) const {
  return std::make_shared<const device::AttentionParams>(portable::contiguous_params(problem.as<Problem>()));
}

}  // namespace tilewise::backends::hopper
