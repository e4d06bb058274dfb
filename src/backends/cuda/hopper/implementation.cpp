// Judges attention problems for a Hopper GPU.
#include "backends/cuda/hopper/implementation.hpp"

#include "backends/cuda/hopper/bwd_config.hpp"
#include "backends/cuda/hopper/schedule.hpp"
#include "backends/portable/attention/lowering.hpp"
#include "gpu/lowered_kernel.hpp"

namespace tilewise::backends::hopper {

core::Verdict AttentionImplementation::judge(const Problem& problem, const core::DeviceDescription& device) const {
  return gpu::judge_lowered(device, gpu::Family::sm90, find_runtime_, [&] { return lower(problem, device); });
}

gpu::DescribedCall AttentionImplementation::contiguous_call(const core::ProblemView& problem) const {
  return portable::contiguous_call(problem.as<Problem>());
}

std::vector<std::string> AttentionImplementation::schedule_names(const core::ProblemView& problem,
                                                                 const core::DeviceDescription& device) const {
  const auto& p = problem.as<Problem>();
  std::vector<std::string> names;
  if (p.operation == Operation::attention_backward) {
    for (const BwdSchedule& schedule : bwd_candidates(p, device)) names.push_back(name_of(schedule));
  } else {
    for (const ForwardSchedule& schedule : forward_candidates(p, device)) names.push_back(name_of(schedule));
  }
  return names;
}

std::string AttentionImplementation::tuning_text(const core::ProblemView& problem) const {
  return hopper::tuning_text(problem.as<Problem>());
}

}  // namespace tilewise::backends::hopper
