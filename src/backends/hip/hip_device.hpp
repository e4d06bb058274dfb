// The HIP devices of this process, and portable kernels on them through libamdhip64.
#pragma once

#include <string>
#include <string_view>

#include "backends/portable/portable_kernel.hpp"
#include "jit/hip_driver.hpp"

namespace tilewise::backends::hip {

/// Devices that can be told apart.
inline constexpr int kMaxDevices = 64;

/// "hipErrorOutOfMemory (out of memory)": the runtime's own words.
[[nodiscard]] std::string error_text(const jit::HipDriver& driver, jit::hip::Result result);
/// Throws Error(runtime) "hipModuleLoadData: hipError..." unless `result` is success.
void check(const jit::HipDriver& driver, jit::hip::Result result, std::string_view function);

/// Makes a device the thread's current one while it lives.
class CurrentDevice {
 public:
  CurrentDevice(const jit::HipDriver& driver, int index);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  const jit::HipDriver& driver_;
  int outer_ = 0;
  bool changed_ = false;
};

class HipRuntime final : public portable::Runtime {
 public:
  /// Throws Error: runtime where libamdhip64 refuses, unsupported for an architecture without kernels.
  HipRuntime(const jit::HipDriver& driver, int index);

  [[nodiscard]] const jit::HipDriver& driver() const noexcept { return driver_; }
  [[nodiscard]] int index() const noexcept { return index_; }
  [[nodiscard]] const portable::DeviceTraits& traits() const noexcept override { return traits_; }
  [[nodiscard]] const jit::Target& target() const noexcept override { return target_; }
  [[nodiscard]] std::shared_ptr<const portable::LoadedKernel> load(const jit::CompiledKernel& kernel,
                                                                   std::uint32_t shared_bytes) const override;
  void launch(const portable::LoadedKernel& kernel, const portable::Launch& launch, const device::KernelParams& params,
              void* stream) const override;

 private:
  [[nodiscard]] int attribute(jit::hip::DeviceAttribute which) const;

  const jit::HipDriver& driver_;
  int index_;
  portable::DeviceTraits traits_;
  jit::Target target_;
};

/// The runtime library, initialised; null with `reason` where it is missing or has no device.
[[nodiscard]] const jit::HipDriver* ready_driver(std::string& reason);
[[nodiscard]] int device_count();
/// The device, opened on first use; null with `reason`.
[[nodiscard]] const HipRuntime* find_runtime(int index, std::string& reason);

}  // namespace tilewise::backends::hip
