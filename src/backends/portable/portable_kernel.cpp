// Lowers a problem, finds or compiles each kernel it needs, and launches them in order.
#include "backends/portable/portable_kernel.hpp"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends/portable/schedule.hpp"
#include "core/device.hpp"
#include "core/message.hpp"
#include "jit/kernel_cache.hpp"
#include "tilewise/error.hpp"

namespace tilewise::backends::portable {
namespace {

using Compiled = std::shared_ptr<const jit::CompiledKernel>;

/// What core promises of a workspace, less than place_workspace() wants.
constexpr std::size_t kCoreAlignment = 64;

/// A kernel to be compiled or found. Backward passes have several, which compile side by side.
struct Wanted {
  KernelKey key;
  std::uint32_t shared_bytes = 0;
  jit::KernelSource source;
  Compiled compiled;
  std::exception_ptr error;
};

std::vector<Wanted> unknown_kernels(const Lowering& lowering, const Runtime& runtime) {
  std::vector<Wanted> wanted;
  for (const Launch& launch : lowering.launches) {
    if (runtime.memo().find(launch.key, launch.shared_bytes) != nullptr) continue;
    Wanted* same = nullptr;
    for (Wanted& other : wanted) {
      if (other.key == launch.key) same = &other;
    }
    if (same != nullptr) {
      same->shared_bytes = std::max(same->shared_bytes, launch.shared_bytes);
      continue;
    }
    const bool host = runtime.target().kind == jit::TargetKind::host;
    wanted.push_back(
        {launch.key, launch.shared_bytes, make_source(launch.key, runtime.traits().machine, host), {}, {}});
  }
  return wanted;
}

void compile(std::vector<Wanted>& wanted, const jit::Target& target) {
  const auto compile_one = [&target](Wanted& kernel) {
    try {
      kernel.compiled = jit::find_or_compile(target, kernel.source);
    } catch (...) {
      kernel.error = std::current_exception();
    }
  };
  std::vector<std::jthread> threads;
  for (std::size_t i = 1; i < wanted.size(); ++i) threads.emplace_back(compile_one, std::ref(wanted[i]));
  compile_one(wanted.front());
  threads.clear();  // joins
  for (const Wanted& kernel : wanted) {
    if (kernel.error) std::rethrow_exception(kernel.error);
  }
}

void load_unknown_kernels(const Lowering& lowering, const Runtime& runtime) {
  std::vector<Wanted> wanted = unknown_kernels(lowering, runtime);
  if (wanted.empty()) return;
  if (core::planning_in_capture()) {
    throw Error(ErrorCode::runtime,
                core::concat("stream: must not be captured while a kernel is used for the first time (",
                             wanted.front().source.symbol, " for ", jit::to_string(runtime.target()),
                             " is not loaded yet); call tilewise.warmup with the same arguments before the capture"));
  }
  compile(wanted, runtime.target());
  for (Wanted& kernel : wanted) {
    runtime.memo().insert({kernel.key, kernel.shared_bytes, runtime.load(*kernel.compiled, kernel.shared_bytes),
                           kernel.compiled->resources});
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

class PortableKernel final : public core::Kernel {
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
