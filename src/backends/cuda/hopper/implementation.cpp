// Judges attention problems for a Hopper GPU.
#include "backends/cuda/hopper/implementation.hpp"

#include "backends/portable/attention/lowering.hpp"
#include "gpu/lowered_kernel.hpp"

namespace tilewise::backends::hopper {

core::Verdict AttentionImplementation::judge(const Problem& problem, const core::DeviceDescription& device) const {
  return gpu::judge_lowered(device, gpu::Family::sm90, find_runtime_, [&] { return lower(problem, device); });
}

std::shared_ptr<const void> AttentionImplementation::contiguous_call(const core::ProblemView& problem) const {
  return std::make_shared<const device::AttentionParams>(portable::contiguous_params(problem.as<Problem>()));
}

}  // namespace tilewise::backends::hopper
