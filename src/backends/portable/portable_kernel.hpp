// A core::Kernel made of portable kernels: lowers the problem, compiles or finds each kernel, and
// launches them in order on whatever Runtime a backend offers.
#pragma once

#include <memory>

#include "backends/portable/kernel_memo.hpp"
#include "backends/portable/lowering.hpp"
#include "jit/compiled_kernel.hpp"
#include "jit/target.hpp"
#include "operations/attention/attention.hpp"

namespace tilewise::backends::portable {

/// A device that runs portable kernels: one GPU, or an emulation. Thread-safe.
class Runtime {
 public:
  virtual ~Runtime() = default;
  [[nodiscard]] virtual const DeviceTraits& traits() const noexcept = 0;
  [[nodiscard]] virtual const jit::Target& target() const noexcept = 0;
  /// Loads a compiled kernel for launches with up to `shared_bytes` of dynamic shared memory. Kernels
  /// of one content are loaded once.
  [[nodiscard]] virtual std::shared_ptr<const LoadedKernel> load(const jit::CompiledKernel& kernel,
                                                                 std::uint32_t shared_bytes) const = 0;
  /// Enqueues; no allocation, no synchronisation.
  virtual void launch(const LoadedKernel& kernel, const Launch& launch, const device::KernelParams& params,
                      void* stream) const = 0;

  /// What make_portable_kernel() has loaded here.
  [[nodiscard]] KernelMemo& memo() const noexcept { return memo_; }

 private:
  mutable KernelMemo memo_;
};

/// Compiles or finds every kernel of the problem and loads it. `runtime` outlives the kernel.
[[nodiscard]] std::unique_ptr<const core::Kernel> make_portable_kernel(const Problem& problem, const Runtime& runtime);

}  // namespace tilewise::backends::portable
