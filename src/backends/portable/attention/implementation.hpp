// Attention's row of the dispatch table for the portable kernels of one family: CUDA's, and HIP's two.
#pragma once

#include <string>
#include <string_view>

#include "backends/portable/attention/lowering.hpp"
#include "gpu/ahead_of_time.hpp"
#include "gpu/runtime.hpp"
#include "operations/attention/attention.hpp"

namespace tilewise::backends::portable {

class AttentionImplementation final : public operations::attention::Implementation, public gpu::AheadOfTime {
 public:
  constexpr AttentionImplementation(std::string_view name, gpu::Family family, gpu::FindRuntime find_runtime) noexcept
      : name_(name), family_(family), find_runtime_(find_runtime) {}

  [[nodiscard]] std::string_view name() const noexcept override { return name_; }
  [[nodiscard]] DeviceType device() const noexcept override { return gpu::traits_of(family_).device; }
  [[nodiscard]] operations::attention::FeatureSet supported() const noexcept override;
  [[nodiscard]] core::Verdict judge(const Problem& problem, const core::DeviceDescription& device) const override;

  [[nodiscard]] gpu::Family family() const noexcept override { return family_; }
  [[nodiscard]] gpu::DescribedCall contiguous_call(const core::ProblemView& problem) const override;

 private:
  std::string_view name_;
  gpu::Family family_;
  gpu::FindRuntime find_runtime_;
};

}  // namespace tilewise::backends::portable
