// Attention's row of the dispatch table for Hopper's own instructions.
#pragma once

#include "backends/cuda/hopper/kernels.hpp"
#include "backends/cuda/hopper/lowering.hpp"
#include "gpu/ahead_of_time.hpp"
#include "gpu/runtime.hpp"
#include "gpu/tunable.hpp"
#include "operations/attention/attention.hpp"

namespace tilewise::backends::hopper {

class AttentionImplementation final : public operations::attention::Implementation,
                                      public gpu::AheadOfTime,
                                      public gpu::Tunable {
 public:
  constexpr explicit AttentionImplementation(gpu::FindRuntime find_runtime) noexcept : find_runtime_(find_runtime) {}

  [[nodiscard]] std::string_view name() const noexcept override { return kImplementationName; }
  [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cuda; }
  [[nodiscard]] operations::attention::FeatureSet supported() const noexcept override { return attention_features(); }
  [[nodiscard]] core::Verdict judge(const Problem& problem, const core::DeviceDescription& device) const override;

  [[nodiscard]] gpu::Family family() const noexcept override { return gpu::Family::sm90; }
  [[nodiscard]] gpu::DescribedCall contiguous_call(const core::ProblemView& problem) const override;
  [[nodiscard]] std::vector<std::string> schedule_names(const core::ProblemView& problem,
                                                        const core::DeviceDescription& device) const override;
  [[nodiscard]] std::string tuning_text(const core::ProblemView& problem) const override;

 private:
  gpu::FindRuntime find_runtime_;
};

}  // namespace tilewise::backends::hopper
