// Portable kernels on one CUDA device: loading cubins and launching them through the driver.
#pragma once

#include "backends/cuda/cuda_device.hpp"
#include "backends/portable/portable_kernel.hpp"

namespace tilewise::backends::cuda {

/// The oldest GPU whose matrix instructions the kernels use, as 10 * major + minor.
inline constexpr int kMinComputeCapability = 80;

class CudaRuntime final : public portable::Runtime {
 public:
  explicit CudaRuntime(const Gpu& gpu);

  [[nodiscard]] const portable::DeviceTraits& traits() const noexcept override { return gpu_.traits(); }
  [[nodiscard]] const jit::Target& target() const noexcept override { return target_; }
  [[nodiscard]] std::shared_ptr<const portable::LoadedKernel> load(const jit::CompiledKernel& kernel,
                                                                   std::uint32_t shared_bytes) const override;
  void launch(const portable::LoadedKernel& kernel, const portable::Launch& launch, const device::KernelParams& params,
              void* stream) const override;

 private:
  const Gpu& gpu_;
  jit::Target target_;
};

/// The runtime of a device, made on first use; null with `reason`, too old a GPU among them.
[[nodiscard]] const CudaRuntime* find_runtime(int index, std::string& reason);

}  // namespace tilewise::backends::cuda
