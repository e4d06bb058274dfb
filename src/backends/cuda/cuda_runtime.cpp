// cuModuleLoadData and cuLaunchKernel, with every answer of theirs checked.
#include "backends/cuda/cuda_runtime.hpp"

#include <array>

#include "core/message.hpp"
#include "jit/published.hpp"
#include "tilewise/error.hpp"

namespace tilewise::backends::cuda {
namespace {

namespace cu = jit::cuda;

/// Dynamic shared memory that a kernel may have without asking for more.
constexpr std::uint32_t kPlainSharedBytes = 48 << 10;
constexpr cu::Result kErrorInvalidHandle = 400, kErrorContextIsDestroyed = 709;

class Module final : public portable::LoadedKernel {
 public:
  Module(const Gpu& gpu, const jit::CompiledKernel& kernel, std::uint32_t shared_bytes) : gpu_(gpu) {
    const jit::CudaDriver& driver = gpu.driver();
    const ContextScope context(gpu);
    check(driver, driver.cuModuleLoadData(&module_, kernel.image.data()), "cuModuleLoadData");
    try {
      check(driver, driver.cuModuleGetFunction(&function_, module_, kernel.symbol.c_str()), "cuModuleGetFunction");
      // Asking a kernel anything loads it now, where the driver would else wait for its first launch.
      int local_bytes = 0;
      check(driver, driver.cuFuncGetAttribute(&local_bytes, cu::kFunctionLocalBytes, function_), "cuFuncGetAttribute");
      if (shared_bytes > kPlainSharedBytes) {
        check(driver,
              driver.cuFuncSetAttribute(function_, cu::kFunctionMaxDynamicSharedBytes, static_cast<int>(shared_bytes)),
              "cuFuncSetAttribute");
      }
    } catch (...) {
      driver.cuModuleUnload(module_);
      throw;
    }
  }
  ~Module() override {
    try {
      const ContextScope context(gpu_);
      gpu_.driver().cuModuleUnload(module_);
    } catch (const Error&) {  // the driver is shutting down, and its memory with it
    }
  }
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  [[nodiscard]] cu::Function function() const noexcept { return function_; }

 private:
  const Gpu& gpu_;
  cu::Module module_ = nullptr;
  cu::Function function_ = nullptr;
};

[[noreturn, gnu::cold]] void fail_launch(const Gpu& gpu, cu::Result result, const portable::Launch& launch) {
  const std::string words = error_text(gpu.driver(), result);
  if (result == kErrorInvalidHandle || result == cu::kErrorInvalidContext || result == kErrorContextIsDestroyed) {
    throw Error(ErrorCode::invalid_argument,
                core::concat("stream: must be a stream of cuda:", gpu.index(),
                             ", where the tensors are (got one that cuLaunchKernel refuses: ", words, ")"));
  }
  throw Error(ErrorCode::runtime,
              core::concat("cuLaunchKernel: ", words, " for ", launch.blocks, " blocks of ", launch.threads,
                           " threads and ", launch.shared_bytes, " bytes of shared memory on cuda:", gpu.index()));
}

struct Made {
  std::unique_ptr<const CudaRuntime> runtime;
  std::string reason;
};

constinit std::array<jit::Published<Made>, kMaxDevices> g_runtimes;

Made make_runtime(int index) {
  Made made;
  const Gpu* gpu = find_gpu(index, made.reason);
  if (gpu == nullptr) return made;
  if (gpu->compute_capability() < kMinComputeCapability) {
    made.reason = core::concat("cuda:", index, ": compute capability must be >= 8.0 (got ",
                               gpu->compute_capability() / 10, ".", gpu->compute_capability() % 10, ")");
    return made;
  }
  made.runtime = std::make_unique<const CudaRuntime>(*gpu);
  return made;
}

}  // namespace

CudaRuntime::CudaRuntime(const Gpu& gpu) : gpu_(gpu), target_{jit::TargetKind::cuda, gpu.traits().architecture} {}

std::shared_ptr<const portable::LoadedKernel> CudaRuntime::load(const jit::CompiledKernel& kernel,
                                                                std::uint32_t shared_bytes) const {
  return std::make_shared<const Module>(gpu_, kernel, shared_bytes);
}

void CudaRuntime::launch(const portable::LoadedKernel& kernel, const portable::Launch& launch,
                         const device::KernelParams& params, void* stream) const {
  const ContextScope context(gpu_);
  std::array<void*, 1> parameters{const_cast<device::KernelParams*>(&params)};
  const cu::Result result = gpu_.driver().cuLaunchKernel(static_cast<const Module&>(kernel).function(), launch.blocks,
                                                         1, 1, launch.threads, 1, 1, launch.shared_bytes,
                                                         static_cast<cu::Stream>(stream), parameters.data(), nullptr);
  if (result != cu::kSuccess) fail_launch(gpu_, result, launch);
}

const CudaRuntime* find_runtime(int index, std::string& reason) {
  if (index < 0 || index >= kMaxDevices) {
    static_cast<void>(find_gpu(index, reason));
    return nullptr;
  }
  const Made& made = g_runtimes[static_cast<std::size_t>(index)].get([index] { return make_runtime(index); });
  if (made.runtime == nullptr) reason = made.reason;
  return made.runtime.get();
}

}  // namespace tilewise::backends::cuda
