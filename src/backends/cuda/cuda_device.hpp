// The CUDA devices of this process: their properties, primary contexts and what the driver says of errors.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "backends/portable/lowering.hpp"
#include "jit/cuda_driver.hpp"

namespace tilewise::backends::cuda {

/// Devices that can be told apart; the driver itself lists no more.
inline constexpr int kMaxDevices = 64;

/// "CUDA_ERROR_OUT_OF_MEMORY (out of memory)": the driver's own words.
[[nodiscard]] std::string error_text(const jit::CudaDriver& driver, jit::cuda::Result result);
/// Throws Error(runtime) "cuModuleLoadData: CUDA_ERROR_..." unless `result` is success.
void check(const jit::CudaDriver& driver, jit::cuda::Result result, std::string_view function);

/// A device that portable kernels can run on. Keeps its primary context for ever.
class Gpu {
 public:
  /// Throws Error(runtime) where the driver refuses.
  Gpu(const jit::CudaDriver& driver, int index);

  [[nodiscard]] const jit::CudaDriver& driver() const noexcept { return driver_; }
  [[nodiscard]] int index() const noexcept { return index_; }
  [[nodiscard]] jit::cuda::Context context() const noexcept { return context_; }
  [[nodiscard]] const portable::DeviceTraits& traits() const noexcept { return traits_; }
  /// 10 * major + minor.
  [[nodiscard]] int compute_capability() const noexcept { return compute_capability_; }

 private:
  [[nodiscard]] int attribute(jit::cuda::DeviceAttribute which, jit::cuda::DeviceId device) const;

  const jit::CudaDriver& driver_;
  int index_;
  jit::cuda::Context context_ = nullptr;
  portable::DeviceTraits traits_;
  int compute_capability_ = 0;
};

/// Makes a device's context the thread's own while it lives, unless it is already.
class ContextScope {
 public:
  explicit ContextScope(const Gpu& gpu);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const Gpu& gpu_;
  bool pushed_ = false;
};

/// The driver, initialised; null with `reason` where it is missing or has no device.
[[nodiscard]] const jit::CudaDriver* ready_driver(std::string& reason);
/// Devices that the driver lists; 0 where ready_driver() is null.
[[nodiscard]] int device_count();
/// The device, opened on first use; null with `reason` where there is no such device or it can't be opened.
[[nodiscard]] const Gpu* find_gpu(int index, std::string& reason);
/// Throws Error(runtime) with the reason where there is none.
[[nodiscard]] const Gpu& required_gpu(int index);

}  // namespace tilewise::backends::cuda
