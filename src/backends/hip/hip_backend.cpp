// The rows and the system functions of HIP.
#include "backends/hip/hip_backend.hpp"

#include <array>
#include <string>

#include "backends/hip/hip_device.hpp"
#include "backends/portable/gpu_implementation.hpp"
#include "core/message.hpp"
#include "tilewise/error.hpp"

namespace tilewise::backends {
namespace hip {
namespace {

namespace amd = jit::hip;

portable::GpuStatus status_of(int index) {
  portable::GpuStatus status;
  status.runtime = find_runtime(index, status.refusal);
  return status;
}

const HipRuntime& required_runtime(int index) {
  std::string reason;
  if (const HipRuntime* runtime = find_runtime(index, reason)) return *runtime;
  throw Error(ErrorCode::runtime, reason);
}

class HipSystem final : public core::DeviceSystem {
 public:
  [[nodiscard]] int current_device() const noexcept override {
    std::string reason;
    const jit::HipDriver* driver = ready_driver(reason);
    int device = 0;
    return driver != nullptr && driver->hipGetDevice(&device) == amd::kSuccess ? device : 0;
  }
  [[nodiscard]] int device_count() const noexcept override { return hip::device_count(); }

  [[nodiscard]] bool is_capturing(int device, void* stream) const override {
    const jit::HipDriver& driver = required_runtime(device).driver();
    if (driver.hipStreamIsCapturing == nullptr) return false;  // older than graphs
    amd::CaptureStatus status = amd::kCaptureNone;
    const amd::Result result = driver.hipStreamIsCapturing(static_cast<amd::Stream>(stream), &status);
    // Asking the legacy stream beside a capture is itself an error, and says as much.
    if (stream == nullptr && result != amd::kSuccess) return true;
    check(driver, result, "hipStreamIsCapturing");
    return status != amd::kCaptureNone;
  }

  [[nodiscard]] void* allocate(int device, std::size_t bytes) const override {
    const jit::HipDriver& driver = required_runtime(device).driver();
    const CurrentDevice current(driver, device);
    void* memory = nullptr;
    const amd::Result result = driver.hipMalloc(&memory, bytes);
    if (result != amd::kSuccess) {
      throw Error(ErrorCode::runtime, core::concat("could not allocate ", bytes, " bytes on hip:", device,
                                                   " (hipMalloc: ", error_text(driver, result), ")"));
    }
    return memory;
  }

  void free(int device, void* memory) const noexcept override {
    std::string reason;
    if (const HipRuntime* runtime = find_runtime(device, reason)) runtime->driver().hipFree(memory);
  }

  void copy_to_device(int device, void* target, const void* source, std::size_t bytes, void* stream) const override {
    if (bytes == 0) return;
    const jit::HipDriver& driver = required_runtime(device).driver();
    const CurrentDevice current(driver, device);
    check(driver, driver.hipMemcpyHtoDAsync(target, source, bytes, static_cast<amd::Stream>(stream)),
          "hipMemcpyHtoDAsync");
    check(driver, driver.hipStreamSynchronize(static_cast<amd::Stream>(stream)), "hipStreamSynchronize");
  }

  void copy_to_host(int device, void* target, const void* source, std::size_t bytes, void* stream) const override {
    if (bytes == 0) return;
    const jit::HipDriver& driver = required_runtime(device).driver();
    const CurrentDevice current(driver, device);
    check(driver, driver.hipMemcpyDtoHAsync(target, const_cast<void*>(source), bytes, static_cast<amd::Stream>(stream)),
          "hipMemcpyDtoHAsync");
    check(driver, driver.hipStreamSynchronize(static_cast<amd::Stream>(stream)), "hipStreamSynchronize");
  }

  void fill(int device, void* memory, std::uint32_t word, std::size_t bytes, void* stream) const override {
    if (bytes == 0) return;
    const jit::HipDriver& driver = required_runtime(device).driver();
    const CurrentDevice current(driver, device);
    if (word == 0) {
      check(driver, driver.hipMemsetD8Async(memory, 0, bytes, static_cast<amd::Stream>(stream)), "hipMemsetD8Async");
    } else {
      check(driver,
            driver.hipMemsetD32Async(memory, static_cast<int>(word), bytes / sizeof word,
                                     static_cast<amd::Stream>(stream)),
            "hipMemsetD32Async");
    }
  }

  void synchronize(int device, void* stream) const override {
    const jit::HipDriver& driver = required_runtime(device).driver();
    const CurrentDevice current(driver, device);
    check(driver, driver.hipStreamSynchronize(static_cast<amd::Stream>(stream)), "hipStreamSynchronize");
  }
};

}  // namespace
}  // namespace hip

std::span<const core::Implementation* const> hip_implementations() {
  static const portable::GpuImplementation cdna("hip.cdna", DeviceType::hip, device::kCdna, hip::status_of);
  static const portable::GpuImplementation rdna("hip.rdna", DeviceType::hip, device::kRdna, hip::status_of);
  static const std::array<const core::Implementation*, 2> table = {&cdna, &rdna};
  return table;
}

const core::DeviceSystem& hip_system() {
  static const hip::HipSystem system;
  return system;
}

}  // namespace tilewise::backends
