// Merge's portable kernels under emulation.
#include "backends/emulation/merge.hpp"

#include "backends/emulation/emulated_call.hpp"
#include "backends/portable/merge/lowering.hpp"
#include "operations/merge/rules.hpp"

namespace tilewise::backends::emulation {
namespace {

constexpr PortableKernels<operations::Merge> kPortable{
    [](const MergeProblem& problem, const core::DeviceDescription& device, gpu::Family family) {
      return portable::lower(problem, device, family).lowering;
    },
    [](MergeProblem& problem, const auto& call) { problem.unaligned = !portable::is_aligned(call); }};

}  // namespace

operations::merge::FeatureSet EmulatedMerge::supported() const noexcept { return portable::merge_features(); }

core::Verdict EmulatedMerge::judge(const MergeProblem& problem, const core::DeviceDescription&) const {
  portable::Outcome outcome = portable::lower(problem, runtime_of(family_)(0).description(), family_);
  if (!outcome.refusal.empty()) return core::Verdict::refuse(std::move(outcome.refusal));
  // The order of magnitude on one thread, compilation aside, and above the reference's: none is chosen by itself.
  constexpr double kCallUs = 1000.0, kPartUs = 5.0, kElementUs = 0.1;
  const double parts = static_cast<double>(operations::merge::rows_of(problem)) * static_cast<double>(problem.parts);
  const double us = kCallUs + parts * (kPartUs + kElementUs * static_cast<double>(problem.head_dim_v));
  return core::Verdict::accept(
      us, std::make_unique<EmulatedCall<operations::Merge>>(problem, family_, std::move(outcome.lowering), kPortable));
}

}  // namespace tilewise::backends::emulation
