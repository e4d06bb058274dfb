// The rows and the system functions of CUDA.
#include "backends/cuda/cuda_backend.hpp"

#include <array>
#include <string>

#include "backends/cuda/cuda_runtime.hpp"
#include "backends/portable/gpu_implementation.hpp"
#include "core/message.hpp"
#include "tilewise/error.hpp"

namespace tilewise::backends {
namespace cuda {
namespace {

namespace cu = jit::cuda;

portable::GpuStatus status_of(int index) {
  portable::GpuStatus status;
  status.runtime = find_runtime(index, status.refusal);
  return status;
}

cu::DevicePointer address_of(const void* memory) { return reinterpret_cast<cu::DevicePointer>(memory); }

class CudaSystem final : public core::DeviceSystem {
 public:
  [[nodiscard]] int current_device() const noexcept override {
    std::string reason;
    const jit::CudaDriver* driver = ready_driver(reason);
    cu::DeviceId device = 0;
    return driver != nullptr && driver->cuCtxGetDevice(&device) == cu::kSuccess ? device : 0;
  }
  [[nodiscard]] int device_count() const noexcept override { return cuda::device_count(); }

  [[nodiscard]] bool is_capturing(int device, void* stream) const override {
    const Gpu& gpu = required_gpu(device);
    const ContextScope context(gpu);
    cu::CaptureStatus status = cu::kCaptureNone;
    const cu::Result result = gpu.driver().cuStreamIsCapturing(static_cast<cu::Stream>(stream), &status);
    // Asking the legacy stream beside a capture is itself an error, and says as much.
    if (stream == nullptr && result != cu::kSuccess) return true;
    check(gpu.driver(), result, "cuStreamIsCapturing");
    return status != cu::kCaptureNone;
  }

  [[nodiscard]] void* allocate(int device, std::size_t bytes) const override {
    const Gpu& gpu = required_gpu(device);
    const ContextScope context(gpu);
    cu::DevicePointer pointer = 0;
    const cu::Result result = gpu.driver().cuMemAlloc(&pointer, bytes);
    if (result != cu::kSuccess) {
      throw Error(ErrorCode::runtime, core::concat("could not allocate ", bytes, " bytes on cuda:", device,
                                                   " (cuMemAlloc: ", error_text(gpu.driver(), result), ")"));
    }
    return reinterpret_cast<void*>(pointer);
  }

  void free(int device, void* memory) const noexcept override {
    std::string reason;
    const Gpu* gpu = find_gpu(device, reason);
    if (gpu == nullptr || memory == nullptr) return;
    try {
      const ContextScope context(*gpu);
      gpu->driver().cuMemFree(address_of(memory));
    } catch (const Error&) {  // the driver is shutting down, and its memory with it
    }
  }

  void copy_to_device(int device, void* target, const void* source, std::size_t bytes, void* stream) const override {
    if (bytes == 0) return;
    const Gpu& gpu = required_gpu(device);
    const ContextScope context(gpu);
    check(gpu.driver(),
          gpu.driver().cuMemcpyHtoDAsync(address_of(target), source, bytes, static_cast<cu::Stream>(stream)),
          "cuMemcpyHtoDAsync");
    check(gpu.driver(), gpu.driver().cuStreamSynchronize(static_cast<cu::Stream>(stream)), "cuStreamSynchronize");
  }

  void copy_to_host(int device, void* target, const void* source, std::size_t bytes, void* stream) const override {
    if (bytes == 0) return;
    const Gpu& gpu = required_gpu(device);
    const ContextScope context(gpu);
    check(gpu.driver(),
          gpu.driver().cuMemcpyDtoHAsync(target, address_of(source), bytes, static_cast<cu::Stream>(stream)),
          "cuMemcpyDtoHAsync");
    check(gpu.driver(), gpu.driver().cuStreamSynchronize(static_cast<cu::Stream>(stream)), "cuStreamSynchronize");
  }

  void fill(int device, void* memory, std::uint32_t word, std::size_t bytes, void* stream) const override {
    if (bytes == 0) return;
    const Gpu& gpu = required_gpu(device);
    const ContextScope context(gpu);
    const auto target = address_of(memory);
    if (word == 0) {
      check(gpu.driver(), gpu.driver().cuMemsetD8Async(target, 0, bytes, static_cast<cu::Stream>(stream)),
            "cuMemsetD8Async");
    } else {
      check(gpu.driver(),
            gpu.driver().cuMemsetD32Async(target, word, bytes / sizeof word, static_cast<cu::Stream>(stream)),
            "cuMemsetD32Async");
    }
  }

  void synchronize(int device, void* stream) const override {
    const Gpu& gpu = required_gpu(device);
    const ContextScope context(gpu);
    check(gpu.driver(), gpu.driver().cuStreamSynchronize(static_cast<cu::Stream>(stream)), "cuStreamSynchronize");
  }
};

}  // namespace
}  // namespace cuda

std::span<const core::Implementation* const> cuda_implementations() {
  static const portable::GpuImplementation sm80("cuda.sm80", DeviceType::cuda, device::kSm80, cuda::status_of);
  static const std::array<const core::Implementation*, 1> table = {&sm80};
  return table;
}

const core::DeviceSystem& cuda_system() {
  static const cuda::CudaSystem system;
  return system;
}

}  // namespace tilewise::backends
