// A device that runs kernels: one GPU, or an emulation of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/device_description.hpp"
#include "gpu/kernel_memo.hpp"
#include "gpu/lowering.hpp"
#include "jit/compiled_kernel.hpp"
#include "jit/target.hpp"

namespace tilewise::gpu {

/// Thread-safe. Whatever enqueues neither allocates nor synchronises, and throws Error(runtime) with the driver's
/// words.
class Runtime {
 public:
  virtual ~Runtime() = default;
  [[nodiscard]] virtual const core::DeviceDescription& description() const noexcept = 0;
  [[nodiscard]] virtual const jit::Target& target() const noexcept = 0;
  /// Loads a compiled kernel for launches with up to `shared_bytes` of dynamic shared memory. Kernels
  /// of one content are loaded once.
  [[nodiscard]] virtual std::shared_ptr<const LoadedKernel> load(const jit::CompiledKernel& kernel,
                                                                 std::uint32_t shared_bytes) const = 0;
  /// Enqueues the launch on a block of launch.params.size() bytes, filled in.
  virtual void launch(const LoadedKernel& kernel, const Launch& launch, const std::byte* block, void* stream) const = 0;
  /// Enqueues zeros.
  virtual void clear(void* memory, std::size_t bytes, void* stream) const = 0;
  /// Writes kTensorMapBytes bytes.
  virtual void encode(const TensorMap& map, std::byte* to) const = 0;

  /// Whether kernels are compiled for the emulator instead of a device.
  [[nodiscard]] bool emulates() const noexcept { return target().kind == jit::TargetKind::host; }
  /// What LoweredKernel has loaded here.
  [[nodiscard]] KernelMemo& memo() const noexcept { return memo_; }

 private:
  mutable KernelMemo memo_;
};

/// Answers for a device's index, whether there is such a device or not. Throws Error(runtime) where there is none.
using FindRuntime = const Runtime& (*)(int index);

}  // namespace tilewise::gpu
