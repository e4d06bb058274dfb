// Attention's emulated row of the dispatch table, of one family.
#pragma once

#include "backends/emulation/runtime.hpp"
#include "operations/attention/attention.hpp"

namespace tilewise::backends::emulation {

class EmulatedAttention final : public operations::attention::Implementation {
 public:
  explicit EmulatedAttention(gpu::Family family) : family_(family) {}

  [[nodiscard]] std::string_view name() const noexcept override { return name_of(family_); }
  [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cpu; }
  [[nodiscard]] operations::attention::FeatureSet supported() const noexcept override;
  [[nodiscard]] core::Verdict judge(const Problem& problem, const core::DeviceDescription& cpu) const override;

 private:
  gpu::Family family_;
};

}  // namespace tilewise::backends::emulation
