// Merge's portable kernels under emulation.
#include "backends/emulation/merge.hpp"

#include <cstring>

#include "backends/portable/merge/lowering.hpp"
#include "gpu/lowered_kernel.hpp"
#include "operations/merge/rules.hpp"

namespace tilewise::backends::emulation {
namespace {

/// Lowers anew at each launch: a problem of the CPU says nothing of alignment, for which there are two kinds of
/// kernels.
class EmulatedCall final : public operations::merge::Kernel {
 public:
  EmulatedCall(const MergeProblem& problem, gpu::Family family, gpu::Lowering lowering)
      : problem_(problem), family_(family), planned_(std::move(lowering), runtime_of(family), 0) {}

  [[nodiscard]] std::string obstacle() const override { return planned_.obstacle(); }
  [[nodiscard]] std::size_t workspace_size() const noexcept override { return planned_.workspace_size(); }
  [[nodiscard]] std::string schedule() const override { return planned_.schedule(); }

  void launch(const operations::merge::MergeParams& params, void* workspace, void* stream) const override {
    // What nobody wrote reads as NaN.
    if (workspace != nullptr) std::memset(workspace, 0xFF, workspace_size());
    MergeProblem problem = problem_;
    problem.unaligned = !portable::is_aligned(params);
    const gpu::FindRuntime find_runtime = runtime_of(family_);
    gpu::LoweredKernel kernel(portable::lower(problem, find_runtime(0).description(), family_).lowering, find_runtime,
                              0);
    kernel.load();
    kernel.launch_on(&params, workspace, stream);
  }

 private:
  MergeProblem problem_;
  gpu::Family family_;
  gpu::LoweredKernel planned_;
};

}  // namespace

operations::merge::FeatureSet EmulatedMerge::supported() const noexcept { return portable::merge_features(); }

core::Verdict EmulatedMerge::judge(const MergeProblem& problem, const core::DeviceDescription&) const {
  portable::MergeOutcome outcome = portable::lower(problem, runtime_of(family_)(0).description(), family_);
  if (!outcome.refusal.empty()) return core::Verdict::refuse(std::move(outcome.refusal));
  // The order of magnitude on one thread, compilation aside, and above the reference's: none is chosen by itself.
  constexpr double kCallUs = 1000.0, kPartUs = 5.0, kElementUs = 0.1;
  const double parts = static_cast<double>(operations::merge::rows_of(problem)) * static_cast<double>(problem.parts);
  const double us = kCallUs + parts * (kPartUs + kElementUs * static_cast<double>(problem.head_dim_v));
  return core::Verdict::accept(us, std::make_unique<EmulatedCall>(problem, family_, std::move(outcome.lowering)));
}

}  // namespace tilewise::backends::emulation
