// Portable kernels on one GPU: opening it, loading code objects and launching them through its driver.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "backends/portable/architectures.hpp"
#include "backends/portable/gpu_driver.hpp"
#include "backends/portable/gpu_implementation.hpp"
#include "backends/portable/portable_kernel.hpp"
#include "core/device.hpp"

namespace tilewise::backends::portable {

/// What an Api tells of a GPU that it has opened.
struct GpuIdentity {
  device::Machine machine = device::kSm80;
  std::string architecture;
  double matrix_rate = 0.0, memory_gigabytes_per_second = 0.0;  ///< as in Architecture
  std::string refusal;  ///< why the kernels can't run on it; empty where they can
};

/// A GPU of this process. Portable kernels run on it unless it has a refusal(); its memory can be used in any case.
template <typename Api>
class Gpu final : public Runtime {
 public:
  /// Throws Error(runtime) where the driver refuses.
  Gpu(const GpuDriver<Api>& driver, int index);

  [[nodiscard]] const GpuDriver<Api>& driver() const noexcept { return driver_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }  ///< "cuda:0"
  [[nodiscard]] const std::string& refusal() const noexcept { return refusal_; }
  /// Makes the GPU the calling thread's own while the scope lives. Throws Error(runtime).
  [[nodiscard]] typename Api::Scope enter() const { return {driver_, home_}; }

  [[nodiscard]] const DeviceTraits& traits() const noexcept override { return traits_; }
  [[nodiscard]] const jit::Target& target() const noexcept override { return target_; }
  [[nodiscard]] std::shared_ptr<const LoadedKernel> load(const jit::CompiledKernel& kernel,
                                                         std::uint32_t shared_bytes) const override;
  void launch(const LoadedKernel& kernel, const Launch& launch, const device::KernelParams& params,
              void* stream) const override;

 private:
  [[noreturn, gnu::cold]] void fail_launch(jit::gpu::Result result, const Launch& launch) const;

  const GpuDriver<Api>& driver_;
  std::string name_;
  typename Api::Home home_;
  DeviceTraits traits_;
  jit::Target target_;
  std::string refusal_;
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
  traits_.machine = identity.machine;
  traits_.architecture = identity.architecture;
  traits_.multiprocessors = attribute(Api::kMultiprocessors);
  traits_.shared_bytes = static_cast<std::size_t>(attribute(Api::kSharedBytes));
  constexpr double kGigahertz = 1e-6;  // of a kilohertz
  set_rates(traits_, identity.matrix_rate, attribute(Api::kClockRateKilohertz) * kGigahertz,
            identity.memory_gigabytes_per_second);
  target_ = {Api::kTarget, identity.architecture};
  if (!identity.refusal.empty()) refusal_ = core::concat(name_, ": ", identity.refusal);
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
void Gpu<Api>::launch(const LoadedKernel& kernel, const Launch& launch, const device::KernelParams& params,
                      void* stream) const {
  const auto scope = enter();
  const jit::gpu::Result result = Api::launch(driver_, static_cast<const GpuModule<Api>&>(kernel).function(), launch,
                                              params, static_cast<jit::gpu::Stream>(stream));
  if (result != jit::gpu::kSuccess) fail_launch(result, launch);
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
  throw Error(ErrorCode::runtime,
              core::concat(Api::kLaunch.name, ": ", words, " for ", launch.blocks, " blocks of ", launch.threads,
                           " threads and ", launch.shared_bytes, " bytes of shared memory on ", name_));
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

/// The device as a runtime of portable kernels, or why it is none.
template <typename Api>
[[nodiscard]] GpuStatus gpu_status(int index) {
  GpuStatus status;
  const Gpu<Api>* gpu = find_gpu<Api>(index, status.refusal);
  if (gpu != nullptr) status.refusal = gpu->refusal();
  if (status.refusal.empty()) status.runtime = gpu;
  return status;
}

}  // namespace tilewise::backends::portable
