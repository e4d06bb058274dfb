// A core::Kernel made of steps on a GPU: finds or compiles each kernel, and runs the steps in order on whatever Runtime
// a backend offers.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/implementation.hpp"
#include "core/message.hpp"
#include "core/visibility.hpp"
#include "gpu/architectures.hpp"
#include "gpu/runtime.hpp"

namespace tilewise::gpu {

class TILEWISE_INTERNAL LoweredKernel final : public core::Kernel {
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

/// What an implementation of a family says of a problem: `lower()`, which gives an Outcome, is asked for devices that
/// have the family.
template <typename Lower>
[[nodiscard]] core::Verdict judge_lowered(const core::DeviceDescription& device, Family family,
                                          FindRuntime find_runtime, const Lower& lower) {
  if (!has_family(device, family)) {
    return core::Verdict::refuse(
        core::concat("the GPU must be one of ", traits_of(family).title, " (got ", device.architecture, ")"));
  }
  Outcome outcome = lower();
  if (!outcome.refusal.empty()) return core::Verdict::refuse(std::move(outcome.refusal));
  const double estimated_us = outcome.lowering.estimated_us;
  return core::Verdict::accept(
      estimated_us, std::make_unique<LoweredKernel>(std::move(outcome.lowering), find_runtime, device.device.index));
}

}  // namespace tilewise::gpu
