// The row of the dispatch table for whole expert layers on Hopper's own instructions: forward, rows of 16 bits. Few
// tokens take one launch that streams weights, of 16 bits or quantised, more a sort before it, and many a sort, a
// gather and a launch in clusters, with weights of 16 bits. Rows and weights in fp8 take a sort, a gather,
// two products and a sum, however many they are.
#pragma once

#include <memory>
#include <string_view>

#include "backends/cuda/hopper/kernels.hpp"
#include "gpu/ahead_of_time.hpp"
#include "gpu/lowering.hpp"
#include "gpu/runtime.hpp"
#include "operations/moe/moe.hpp"

namespace tilewise::backends::hopper {

[[nodiscard]] operations::moe::FeatureSet moe_features();

/// A pure function of the problem and the device's description.
[[nodiscard]] gpu::Outcome lower(const MoeProblem& problem, const core::DeviceDescription& device);

class MoeImplementation final : public operations::moe::Implementation, public gpu::AheadOfTime {
 public:
  constexpr explicit MoeImplementation(gpu::FindRuntime find_runtime) noexcept : find_runtime_(find_runtime) {}

  [[nodiscard]] std::string_view name() const noexcept override { return kImplementationName; }
  [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cuda; }
  [[nodiscard]] operations::moe::FeatureSet supported() const noexcept override { return moe_features(); }
  [[nodiscard]] core::Verdict judge(const MoeProblem& problem, const core::DeviceDescription& device) const override;

  [[nodiscard]] gpu::Family family() const noexcept override { return gpu::Family::sm90; }
  [[nodiscard]] gpu::DescribedCall contiguous_call(const core::ProblemView& problem) const override;

 private:
  gpu::FindRuntime find_runtime_;
};

}  // namespace tilewise::backends::hopper
