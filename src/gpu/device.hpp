// One GPU: opening it, loading code objects and launching them through its driver.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "core/device.hpp"
#include "gpu/architectures.hpp"
#include "gpu/driver.hpp"
#include "gpu/runtime.hpp"
#include "gpu/tensor_map_cache.hpp"
#include "jit/tuned_schedules.hpp"

namespace tilewise::gpu {

/// What an Api tells of a GPU that it has opened.
struct GpuIdentity {
  std::string architecture;
  double matrix_rate = 0.0, memory_gigabytes_per_second = 0.0;  ///< as in Architecture
  std::string refusal;  ///< why the kernels can't run on it; empty where they can
};

/// A GPU of this process. Kernels run on it unless its description refuses; its memory can be used in any case.
template <typename Api>
class Gpu final : public Runtime {
 public:
  /// Throws Error(runtime) where the driver refuses.
  Gpu(const GpuDriver<Api>& driver, int index);

  [[nodiscard]] const GpuDriver<Api>& driver() const noexcept { return driver_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }  ///< "cuda:0"
  /// Makes the GPU the calling thread's own while the scope lives. Throws Error(runtime).
  [[nodiscard]] typename Api::Scope enter() const { return {driver_, home_}; }

  [[nodiscard]] const core::DeviceDescription& description() const noexcept override { return description_; }
  [[nodiscard]] const jit::Target& target() const noexcept override { return target_; }
  [[nodiscard]] std::shared_ptr<const LoadedKernel> load(const jit::CompiledKernel& kernel,
                                                         std::uint32_t shared_bytes) const override;
  void launch(const LoadedKernel& kernel, const Launch& launch, const std::byte* block, void* stream) const override;
  void clear(void* memory, std::size_t bytes, void* stream) const override;
  void encode(const TensorMap& map, std::byte* to) const override {
    static thread_local TensorMapCache cache;
    cache.encode(this, map, to, [&](std::byte* encoded) {
      const auto scope = enter();  // the driver looks the tensor's address up in the thread's own context
      Api::encode(driver_, map, encoded);
    });
  }

 private:
  [[noreturn, gnu::cold]] void fail_launch(jit::gpu::Result result, const Launch& launch) const;

  const GpuDriver<Api>& driver_;
  std::string name_;
  typename Api::Home home_;
  core::DeviceDescription description_;
  jit::Target target_;
};

template <typename Api>
Gpu<Api>::Gpu(const GpuDriver<Api>& driver, int index)
    : driver_(driver), name_(core::device_name({Api::kDevice, index})) {
  const int id = Api::device_id(driver, index);
  const auto attribute = [&driver, id](auto which) {
    int value = 0;
    driver.call(Api::kGetAttribute, &value, which, id);
    return value;
  };
  const GpuIdentity identity = Api::identify(driver, id);
  description_.device = {Api::kDevice, index};
  description_.architecture = identity.architecture;
  description_.multiprocessors = attribute(Api::kMultiprocessors);
  description_.shared_bytes = static_cast<std::size_t>(attribute(Api::kSharedBytes));
  constexpr double kGigahertz = 1e-6;  // of a kilohertz
  description_.gigahertz = attribute(Api::kClockRateKilohertz) * kGigahertz;
  description_.matrix_rate = identity.matrix_rate;
  description_.memory_gigabytes_per_second = identity.memory_gigabytes_per_second;
  description_.tuned = jit::load_tuned_schedules(core::tuned_kind(description_));
  if (!identity.refusal.empty()) description_.refusal = core::concat(name_, ": ", identity.refusal);
  target_ = {Api::kTarget, identity.architecture};
  home_ = Api::home(driver, id);
}

/// A code object on a GPU, and its one kernel.
template <typename Api>
class GpuModule final : public LoadedKernel {
 public:
  GpuModule(const Gpu<Api>& gpu, const jit::CompiledKernel& kernel, std::uint32_t shared_bytes) : gpu_(gpu) {
    const GpuDriver<Api>& driver = gpu.driver();
    const auto scope = gpu.enter();
    driver.call(Api::kLoadModule, &module_, kernel.image.data());
    try {
      driver.call(Api::kGetFunction, &function_, module_, kernel.symbol.c_str());
      Api::prepare(driver, function_, shared_bytes);
    } catch (...) {
      driver.ask(Api::kUnloadModule, module_);
      throw;
    }
  }
  ~GpuModule() override {
    try {
      const auto scope = gpu_.enter();
      gpu_.driver().ask(Api::kUnloadModule, module_);
    } catch (const Error&) {  // the driver is shutting down, and its memory with it
    }
  }
  GpuModule(const GpuModule&) = delete;
  GpuModule& operator=(const GpuModule&) = delete;

  [[nodiscard]] jit::gpu::Function function() const noexcept { return function_; }

 private:
  const Gpu<Api>& gpu_;
  jit::gpu::Module module_ = nullptr;
  jit::gpu::Function function_ = nullptr;
};

template <typename Api>
std::shared_ptr<const LoadedKernel> Gpu<Api>::load(const jit::CompiledKernel& kernel,
                                                   std::uint32_t shared_bytes) const {
  return std::make_shared<const GpuModule<Api>>(*this, kernel, shared_bytes);
}

template <typename Api>
void Gpu<Api>::launch(const LoadedKernel& kernel, const Launch& launch, const std::byte* block, void* stream) const {
  const auto scope = enter();
  const jit::gpu::Result result = Api::launch(driver_, static_cast<const GpuModule<Api>&>(kernel).function(), launch,
                                              block, static_cast<jit::gpu::Stream>(stream));
  if (result != jit::gpu::kSuccess) fail_launch(result, launch);
}

template <typename Api>
void Gpu<Api>::clear(void* memory, std::size_t bytes, void* stream) const {
  const auto scope = enter();
  constexpr unsigned char kZero = 0;
  driver_.call(Api::kFillBytes, reinterpret_cast<typename Api::Pointer>(memory), kZero, bytes,
               static_cast<jit::gpu::Stream>(stream));
}

template <typename Api>
void Gpu<Api>::fail_launch(jit::gpu::Result result, const Launch& launch) const {
  using namespace jit::gpu;
  const std::string words = driver_.error_text(result);
  if (result == kErrorInvalidHandle || result == kErrorInvalidContext || result == kErrorContextIsDestroyed) {
    throw Error(ErrorCode::invalid_argument,
                core::concat("stream: must be a stream of ", name_, ", where the tensors are (got one that ",
                             Api::kLaunch.name, " refuses: ", words, ")"));
  }
  throw Error(ErrorCode::runtime, core::concat(Api::kLaunch.name, ": ", words, " for ", launch.grid.count(),
                                               " blocks of ", launch.threads(), " threads and ",
                                               launch.key.shared_bytes(), " bytes of shared memory on ", name_));
}

template <typename Api>
struct OpenedGpu {
  std::unique_ptr<const Gpu<Api>> gpu;
  std::string reason;
};

template <typename Api>
constinit inline std::array<jit::Published<OpenedGpu<Api>>, kMaxGpus> g_gpus;

/// The device, opened on first use; null with `reason` where there is no such device or it can't be opened.
template <typename Api>
[[nodiscard]] const Gpu<Api>* find_gpu(int index, std::string& reason) {
  const ReadyDriver<Api>& ready = ready_driver<Api>();
  if (!ready.driver) {
    reason = ready.reason;
    return nullptr;
  }
  if (index < 0 || index >= ready.devices) {
    reason = core::concat(core::device_name({Api::kDevice, index}), ": must be one of the ", ready.devices, " ",
                          Api::kTitle, " devices here");
    return nullptr;
  }
  const OpenedGpu<Api>& opened = g_gpus<Api>[static_cast<std::size_t>(index)].get([&ready, index]() -> OpenedGpu<Api> {
    try {
      return {std::make_unique<const Gpu<Api>>(*ready.driver, index), {}};
    } catch (const Error& error) {
      return {nullptr, core::concat(core::device_name({Api::kDevice, index}), ": ", error.what())};
    }
  });
  if (opened.gpu == nullptr) reason = opened.reason;
  return opened.gpu.get();
}

/// What is known of the device. Its refusal says why nothing can run on it, or why there is none.
template <typename Api>
[[nodiscard]] core::DeviceDescription describe_gpu(int index) {
  std::string reason;
  if (const Gpu<Api>* gpu = find_gpu<Api>(index, reason)) return gpu->description();
  core::DeviceDescription missing;
  missing.device = {Api::kDevice, index};
  missing.refusal = std::move(reason);
  return missing;
}

/// The device as a runtime. Throws Error(runtime) where there is none.
template <typename Api>
[[nodiscard]] const Gpu<Api>& required_gpu(int index) {
  std::string reason;
  if (const Gpu<Api>* gpu = find_gpu<Api>(index, reason)) return *gpu;
  throw Error(ErrorCode::runtime, reason);
}

}  // namespace tilewise::gpu
