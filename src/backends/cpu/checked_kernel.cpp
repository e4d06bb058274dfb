// Look-ups that are checked; see checked_kernel.hpp.
#include "backends/cpu/checked_kernel.hpp"

#include <string>
#include <utility>

#include "core/device.hpp"

namespace tilewise::backends::cpu {
namespace {

class LookUpCheckingKernel final : public operations::attention::Kernel {
 public:
  LookUpCheckingKernel(std::unique_ptr<core::Kernel> kernel, const Problem& problem, LookUpCheck check)
      : kernel_(std::move(kernel)), problem_(problem), check_(check) {}

  [[nodiscard]] std::string obstacle() const override { return kernel_->obstacle(); }
  void load() override { kernel_->load(); }
  [[nodiscard]] std::size_t workspace_size() const noexcept override { return kernel_->workspace_size(); }
  [[nodiscard]] std::string schedule() const override { return kernel_->schedule(); }

  void launch(const device::AttentionParams& p, void* workspace, void* stream) const override {
    if (core::checks_requested()) check_(p, problem_);
    kernel_->launch_on(&p, workspace, stream);
  }

 private:
  std::unique_ptr<core::Kernel> kernel_;
  Problem problem_;
  LookUpCheck check_;
};

}  // namespace

std::unique_ptr<core::Kernel> checking_look_ups(std::unique_ptr<core::Kernel> kernel, const Problem& problem,
                                                LookUpCheck check) {
  if (problem.tables.empty()) return kernel;
  return std::make_unique<LookUpCheckingKernel>(std::move(kernel), problem, check);
}

}  // namespace tilewise::backends::cpu
