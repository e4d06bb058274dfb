// What the framework asks of a kind of GPU (core/device.hpp), through its driver.
#pragma once

#include <cstdint>
#include <string>

#include "core/device.hpp"
#include "gpu/device.hpp"

namespace tilewise::gpu {

template <typename Api>
class GpuSystem final : public core::DeviceSystem {
 public:
  [[nodiscard]] int current_device() const noexcept override {
    const ReadyDriver<Api>& ready = ready_driver<Api>();
    int device = 0;
    return ready.driver && ready.driver->ask(Api::kCurrentDevice, &device) == jit::gpu::kSuccess ? device : 0;
  }
  [[nodiscard]] int device_count() const noexcept override { return ready_driver<Api>().devices; }
  [[nodiscard]] core::DeviceDescription describe(int device) const override { return describe_gpu<Api>(device); }

  [[nodiscard]] bool is_capturing(int device, void* stream) const override {
    const Gpu<Api>& gpu = required_gpu<Api>(device);
    if (!gpu.driver().has(Api::kIsCapturing)) return false;  // older than graphs
    const auto scope = gpu.enter();
    jit::gpu::CaptureStatus status = jit::gpu::kCaptureNone;
    const jit::gpu::Result result = gpu.driver().ask(Api::kIsCapturing, stream_of(stream), &status);
    // Asking the legacy stream beside a capture is itself an error, and says as much.
    if (stream == nullptr && result != jit::gpu::kSuccess) return true;
    gpu.driver().check(result, Api::kIsCapturing.name);
    return status != jit::gpu::kCaptureNone;
  }

  [[nodiscard]] void* allocate(int device, std::size_t bytes) const override {
    const Gpu<Api>& gpu = required_gpu<Api>(device);
    const auto scope = gpu.enter();
    typename Api::Pointer pointer{};
    const jit::gpu::Result result = gpu.driver().ask(Api::kAllocate, &pointer, bytes);
    if (result != jit::gpu::kSuccess) {
      throw Error(ErrorCode::runtime, core::concat("could not allocate ", bytes, " bytes on ", gpu.name(), " (",
                                                   Api::kAllocate.name, ": ", gpu.driver().error_text(result), ")"));
    }
    return reinterpret_cast<void*>(pointer);
  }

  void free(int device, void* memory) const noexcept override {
    std::string reason;
    const Gpu<Api>* gpu = find_gpu<Api>(device, reason);
    if (gpu == nullptr || memory == nullptr) return;
    try {
      const auto scope = gpu->enter();
      gpu->driver().ask(Api::kFree, address_of(memory));
    } catch (const Error&) {  // the driver is shutting down, and its memory with it
    }
  }

  void copy_to_device(int device, void* target, const void* source, std::size_t bytes, void* stream) const override {
    if (bytes == 0) return;
    const Gpu<Api>& gpu = required_gpu<Api>(device);
    const auto scope = gpu.enter();
    gpu.driver().call(Api::kCopyToDevice, address_of(target), source, bytes, stream_of(stream));
    gpu.driver().call(Api::kSynchronize, stream_of(stream));
  }

  void copy_to_host(int device, void* target, const void* source, std::size_t bytes, void* stream) const override {
    if (bytes == 0) return;
    const Gpu<Api>& gpu = required_gpu<Api>(device);
    const auto scope = gpu.enter();
    gpu.driver().call(Api::kCopyToHost, target, address_of(source), bytes, stream_of(stream));
    gpu.driver().call(Api::kSynchronize, stream_of(stream));
  }

  void fill(int device, void* memory, std::uint32_t word, std::size_t bytes, void* stream) const override {
    if (bytes == 0) return;
    const Gpu<Api>& gpu = required_gpu<Api>(device);
    const auto scope = gpu.enter();
    if (word == 0) {
      constexpr unsigned char kZero = 0;
      gpu.driver().call(Api::kFillBytes, address_of(memory), kZero, bytes, stream_of(stream));
    } else {
      gpu.driver().call(Api::kFillWords, address_of(memory), static_cast<typename Api::FillWord>(word),
                        bytes / sizeof word, stream_of(stream));
    }
  }

  void synchronize(int device, void* stream) const override {
    const Gpu<Api>& gpu = required_gpu<Api>(device);
    const auto scope = gpu.enter();
    gpu.driver().call(Api::kSynchronize, stream_of(stream));
  }

 private:
  static typename Api::Pointer address_of(const void* memory) {
    return reinterpret_cast<typename Api::Pointer>(const_cast<void*>(memory));
  }
  static jit::gpu::Stream stream_of(void* stream) { return static_cast<jit::gpu::Stream>(stream); }
};

}  // namespace tilewise::gpu
