// Rows of the dispatch table for portable kernels, of any operation with a schema.
#pragma once

#include <string_view>

#include "backends/contiguous_call.hpp"
#include "core/implementation.hpp"
#include "gpu/ahead_of_time.hpp"
#include "gpu/lowered_kernel.hpp"
#include "gpu/runtime.hpp"

namespace tilewise::backends::portable {

/// What an operation says of its portable kernels. Each specializes it, with static functions
///   features()                       what they honour, for every family
///   lower(problem, device, family)   their steps: a pure function
///   is_aligned(params)               whether every row that they touch starts on 16 bytes; of problems that ask
///   emulated_us(problem)             the order of magnitude of their emulation on one thread, compilation aside
template <typename Op>
struct Portable;

/// The row for one family: CUDA's, and HIP's two.
template <typename Op>
class PortableRow final : public core::ImplementationOf<Op>, public gpu::AheadOfTime {
 public:
  constexpr PortableRow(std::string_view name, gpu::Family family, gpu::FindRuntime find_runtime) noexcept
      : name_(name), family_(family), find_runtime_(find_runtime) {}

  [[nodiscard]] std::string_view name() const noexcept override { return name_; }
  [[nodiscard]] DeviceType device() const noexcept override { return gpu::traits_of(family_).device; }
  [[nodiscard]] core::FeatureSetOf<typename Op::Feature> supported() const noexcept override {
    return Portable<Op>::features();
  }
  [[nodiscard]] core::Verdict judge(const typename Op::Problem& problem,
                                    const core::DeviceDescription& device) const override {
    return gpu::judge_lowered(device, family_, find_runtime_,
                              [&] { return Portable<Op>::lower(problem, device, family_); });
  }

  [[nodiscard]] gpu::Family family() const noexcept override { return family_; }
  [[nodiscard]] gpu::DescribedCall contiguous_call(const core::ProblemView& problem) const override {
    return backends::contiguous_call<Op>(problem.as<typename Op::Problem>());
  }

 private:
  std::string_view name_;
  gpu::Family family_;
  gpu::FindRuntime find_runtime_;
};

}  // namespace tilewise::backends::portable
