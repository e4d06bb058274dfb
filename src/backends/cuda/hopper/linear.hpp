// The row of the dispatch table for linear layers on Hopper's own instructions: forward, rows and weights of 16 bits,
// or of fp8 in blocks. A product in one launch; before it a small one where rows are by expert or where there are
// scales.
#pragma once

#include <memory>
#include <string_view>

#include "backends/cuda/hopper/kernels.hpp"
#include "gpu/ahead_of_time.hpp"
#include "gpu/lowering.hpp"
#include "gpu/runtime.hpp"
#include "operations/linear/linear.hpp"

namespace tilewise::backends::hopper {

[[nodiscard]] operations::linear::FeatureSet linear_features();

/// A pure function of the problem and the device's description.
[[nodiscard]] gpu::Outcome lower(const LinearProblem& problem, const core::DeviceDescription& device);

class LinearImplementation final : public operations::linear::Implementation, public gpu::AheadOfTime {
 public:
  constexpr explicit LinearImplementation(gpu::FindRuntime find_runtime) noexcept : find_runtime_(find_runtime) {}

  [[nodiscard]] std::string_view name() const noexcept override { return kImplementationName; }
  [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cuda; }
  [[nodiscard]] operations::linear::FeatureSet supported() const noexcept override { return linear_features(); }
  [[nodiscard]] core::Verdict judge(const LinearProblem& problem, const core::DeviceDescription& device) const override;

  [[nodiscard]] gpu::Family family() const noexcept override { return gpu::Family::sm90; }
  [[nodiscard]] gpu::DescribedCall contiguous_call(const core::ProblemView& problem) const override;

 private:
  gpu::FindRuntime find_runtime_;
};

}  // namespace tilewise::backends::hopper
