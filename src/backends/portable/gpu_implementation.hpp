// One row of the dispatch table for the portable kernels of one family of GPUs: CUDA's, and HIP's two.
#pragma once

#include <string>
#include <string_view>

#include "backends/portable/portable_kernel.hpp"
#include "operations/attention/attention.hpp"

namespace tilewise::backends::portable {

/// Empty, or why the portable kernels can't serve a problem whose features they have on this runtime. Without a
/// compiler a kernel may still be loaded already, or lie in a bundle or in the cache.
[[nodiscard]] std::string runtime_refusal(const Problem& problem, const Runtime& runtime);

/// One GPU as a backend found it: its runtime, or why there is none.
struct GpuStatus {
  std::string refusal;
  const Runtime* runtime = nullptr;
};

class GpuImplementation final : public operations::attention::Implementation {
 public:
  /// `status` answers for a device's index, whether there is such a device or not.
  GpuImplementation(std::string_view name, DeviceType device, device::Machine machine,
                    GpuStatus (*status)(int index)) noexcept
      : name_(name), device_(device), machine_(machine), status_(status) {}

  [[nodiscard]] std::string_view name() const noexcept override { return name_; }
  [[nodiscard]] DeviceType device() const noexcept override { return device_; }
  [[nodiscard]] operations::attention::FeatureSet supported() const noexcept override { return portable_features(); }
  [[nodiscard]] device::Machine machine() const noexcept { return machine_; }
  [[nodiscard]] core::Verdict judge(const Problem& problem) const override;
  [[nodiscard]] std::unique_ptr<const core::Kernel> prepare(const Problem& problem) const override;

 private:
  std::string_view name_;
  DeviceType device_;
  device::Machine machine_;
  GpuStatus (*status_)(int index);
};

}  // namespace tilewise::backends::portable
