// A core::Kernel made of steps on a GPU: finds or compiles each kernel, and runs the steps in order on whatever Runtime
// a backend offers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/implementation.hpp"
#include "gpu/runtime.hpp"

namespace tilewise::gpu {

class LoweredKernel final : public core::Kernel {
 public:
  LoweredKernel(Lowering lowering, FindRuntime find_runtime, int device_index)
      : lowering_(std::move(lowering)), find_runtime_(find_runtime), device_index_(device_index) {}

  [[nodiscard]] const Lowering& lowering() const noexcept { return lowering_; }

  /// Without a compiler a kernel may still be loaded already, or lie in a bundle or in the cache.
  [[nodiscard]] std::string obstacle() const override;
  void load() override;
  [[nodiscard]] std::size_t workspace_size() const noexcept override;
  [[nodiscard]] std::string schedule() const override;
  void launch_on(const void* call, void* workspace, void* stream) const override;

 private:
  void run(const Launch& launch, const KnownKernel& kernel, const void* call, void* workspace, void* stream) const;

  Lowering lowering_;
  FindRuntime find_runtime_;
  int device_index_;
  const Runtime* runtime_ = nullptr;         ///< once loaded
  std::vector<const KnownKernel*> kernels_;  ///< one for each launch; the runtime's memo keeps them
};

}  // namespace tilewise::gpu
