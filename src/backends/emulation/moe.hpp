// An expert layer's emulated row of the dispatch table: Hopper's kernels.
#pragma once

#include "backends/emulation/runtime.hpp"
#include "operations/moe/moe.hpp"

namespace tilewise::backends::emulation {

class EmulatedMoe final : public operations::moe::Implementation {
 public:
  /// `family` is sm90, which alone has such kernels.
  explicit EmulatedMoe(gpu::Family family) : family_(family) {}

  [[nodiscard]] std::string_view name() const noexcept override { return name_of(family_); }
  [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cpu; }
  [[nodiscard]] operations::moe::FeatureSet supported() const noexcept override;
  [[nodiscard]] core::Verdict judge(const MoeProblem& problem, const core::DeviceDescription& cpu) const override;

 private:
  gpu::Family family_;
};

}  // namespace tilewise::backends::emulation
