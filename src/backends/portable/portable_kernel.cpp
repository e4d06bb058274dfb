// Lowers a problem, finds or compiles each kernel it needs, and launches them in order.
#include "backends/portable/portable_kernel.hpp"

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "backends/portable/compile_ahead.hpp"
#include "backends/portable/schedule.hpp"
#include "core/device.hpp"
#include "core/message.hpp"
#include "operations/attention/attention.hpp"
#include "tilewise/error.hpp"

namespace tilewise::backends::portable {
namespace {

/// What core promises of a workspace, less than place_workspace() wants.
constexpr std::size_t kCoreAlignment = 64;

/// What is not loaded yet. Backward passes have several kernels, which compile side by side.
std::vector<KernelBuild> unknown_kernels(const Lowering& lowering, const Runtime& runtime) {
  Lowering unknown;
  for (const Launch& launch : lowering.launches) {
    if (runtime.memo().find(launch.key, launch.shared_bytes) == nullptr) unknown.launches.push_back(launch);
  }
  std::vector<KernelBuild> builds;
  add_builds(unknown, runtime.traits(), runtime.target(), builds);
  return builds;
}

void load_unknown_kernels(const Lowering& lowering, const Runtime& runtime) {
  std::vector<KernelBuild> builds = unknown_kernels(lowering, runtime);
  if (builds.empty()) return;
  if (core::planning_in_capture()) {
    throw Error(ErrorCode::runtime,
                core::concat("stream: must not be captured while a kernel is used for the first time (",
                             builds.front().source.symbol, " for ", jit::to_string(runtime.target()),
                             " is not loaded yet); call tilewise.warmup with the same arguments before the capture"));
  }
  compile_ahead(builds);
  for (const KernelBuild& build : builds) {
    if (build.error) std::rethrow_exception(build.error);
    const std::uint32_t bytes = shared_bytes(build.key.kind, build.key.config, runtime.traits().machine);
    runtime.memo().insert({build.key, bytes, runtime.load(*build.compiled, bytes), build.compiled->resources});
  }
}

std::string resources_text(const Launch& launch, device::Machine machine, const jit::KernelResources& r) {
  std::string text = core::concat(r.registers, " registers");
  if (r.accumulation_registers > 0) core::append(text, core::concat(" + ", r.accumulation_registers, " accumulation"));
  const auto declared = static_cast<std::uint32_t>(r.static_shared_bytes);
  core::append(text, core::concat(", ", declared + dynamic_shared_bytes(launch.key, machine), " bytes shared"));
  if (r.spill_bytes > 0) core::append(text, core::concat(", ", r.spill_bytes, " bytes spilled"));
  if (r.scratch_bytes > 0) core::append(text, core::concat(", ", r.scratch_bytes, " bytes scratch"));
  return text;
}

class PortableKernel final : public operations::attention::Kernel {
 public:
  PortableKernel(const Problem& problem, const Runtime& runtime)
      : runtime_(runtime), lowering_(lower(problem, runtime.traits())) {
    load_unknown_kernels(lowering_, runtime);
    kernels_.reserve(lowering_.launches.size());
    for (const Launch& launch : lowering_.launches) {
      kernels_.push_back(runtime.memo().find(launch.key, launch.shared_bytes));
    }
  }

  [[nodiscard]] std::size_t workspace_size() const noexcept override {
    const std::size_t size = lowering_.workspace.size;
    return size == 0 ? 0 : size + kWorkspaceAlignment - kCoreAlignment;
  }

  [[nodiscard]] std::string schedule() const override {
    std::string text = lowering_.schedule;
    if (runtime_.target().kind == jit::TargetKind::host) return text;
    for (std::size_t i = 0; i < kernels_.size(); ++i) {
      core::append(text, kernels_.size() > 1 ? core::concat("; kernel ", i + 1, ": ") : std::string("; "));
      core::append(text, resources_text(lowering_.launches[i], runtime_.traits().machine, kernels_[i]->resources));
    }
    return text;
  }

  void launch(const device::AttentionParams& params, void* workspace, void* stream) const override {
    const auto address = reinterpret_cast<std::uintptr_t>(workspace);
    auto* aligned =
        reinterpret_cast<void*>((address + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment);
    device::KernelParams kernel_params{params, {}};
    for (std::size_t i = 0; i < kernels_.size(); ++i) {
      const Launch& launch = lowering_.launches[i];
      if (launch.blocks == 0) continue;
      kernel_params.grid = place_workspace(launch.grid, lowering_.workspace, aligned);
      runtime_.launch(*kernels_[i]->loaded, launch, kernel_params, stream);
    }
  }

 private:
  const Runtime& runtime_;
  Lowering lowering_;
  std::vector<const KnownKernel*> kernels_;  ///< one for each launch; the memo keeps them
};

}  // namespace

std::unique_ptr<const core::Kernel> make_portable_kernel(const Problem& problem, const Runtime& runtime) {
  return std::make_unique<const PortableKernel>(problem, runtime);
}

}  // namespace tilewise::backends::portable
