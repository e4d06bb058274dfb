// Finds or compiles each kernel of a lowering, and runs its steps in order.
#include "gpu/lowered_kernel.hpp"

#include <algorithm>
#include <cstdint>
#include <exception>

#include "core/device.hpp"
#include "core/message.hpp"
#include "gpu/compile_ahead.hpp"
#include "jit/kernel_cache.hpp"
#include "tilewise/error.hpp"

namespace tilewise::gpu {
namespace {

/// What core promises of a workspace, less than its parts want.
constexpr std::size_t kCoreAlignment = 64;

/// What is not loaded yet. Backward passes have several kernels, which compile side by side.
std::vector<KernelBuild> unknown_kernels(const Lowering& lowering, const Runtime& runtime) {
  std::vector<const Launch*> unknown = lowering.launches();
  std::erase_if(unknown, [&runtime](const Launch* launch) { return runtime.memo().find(launch->key) != nullptr; });
  std::vector<KernelBuild> builds;
  add_builds(unknown, runtime.target(), builds);
  return builds;
}

void load_unknown_kernels(const Lowering& lowering, const Runtime& runtime) {
  std::vector<KernelBuild> builds = unknown_kernels(lowering, runtime);
  if (builds.empty()) return;
  if (core::planning_in_capture()) {
    throw Error(ErrorCode::runtime,
                core::concat("stream: must not be captured while a kernel is used for the first time (",
                             builds.front().source.symbol, " for ", jit::to_string(runtime.target()),
                             " is not loaded yet); call tilewise.warmup, or the function itself, before the capture"));
  }
  compile_ahead(builds);
  for (const KernelBuild& build : builds) {
    if (build.error) std::rethrow_exception(build.error);
    // One loaded kernel serves launches that take more than they need, too: see Launch::least_shared_bytes.
    const auto most = static_cast<std::uint32_t>(runtime.description().shared_bytes);
    const std::uint32_t bytes = build.key.shared_bytes() > 0 ? most : 0;
    runtime.memo().insert({build.key, runtime.load(*build.compiled, bytes), build.compiled->resources});
  }
}

std::string resources_text(const Launch& launch, const jit::KernelResources& r) {
  std::string text = core::concat(r.registers, " registers");
  if (r.accumulation_registers > 0) core::append(text, core::concat(" + ", r.accumulation_registers, " accumulation"));
  const auto declared = static_cast<std::uint32_t>(r.static_shared_bytes);
  core::append(text, core::concat(", ", declared + launch.key.dynamic_shared_bytes(), " bytes shared"));
  if (r.spill_bytes > 0) core::append(text, core::concat(", ", r.spill_bytes, " bytes spilled"));
  if (r.scratch_bytes > 0) core::append(text, core::concat(", ", r.scratch_bytes, " bytes scratch"));
  return text;
}

}  // namespace

std::string LoweredKernel::obstacle() const {
  const Runtime& runtime = find_runtime_(device_index_);
  std::string reason = jit::compiler_reason(runtime.target());
  if (reason.empty()) return reason;
  const bool all_there = std::ranges::all_of(lowering_.launches(), [&runtime](const Launch* launch) {
    return runtime.memo().find(launch->key) != nullptr ||
           jit::find_compiled(runtime.target(), make_source(launch->key, runtime.emulates())) != nullptr;
  });
  return all_there ? std::string() : reason;
}

void LoweredKernel::load() {
  const Runtime& runtime = find_runtime_(device_index_);
  load_unknown_kernels(lowering_, runtime);
  for (const Launch* launch : lowering_.launches()) kernels_.push_back(runtime.memo().find(launch->key));
  runtime_ = &runtime;
}

std::size_t LoweredKernel::workspace_size() const noexcept {
  const std::size_t bytes = lowering_.workspace_bytes;
  return bytes == 0 ? 0 : bytes + kWorkspaceAlignment - kCoreAlignment;
}

std::string LoweredKernel::schedule() const {
  std::string text = lowering_.schedule;
  if (runtime_ == nullptr || runtime_->emulates()) return text;
  const std::vector<const Launch*> launches = lowering_.launches();
  for (std::size_t i = 0; i < kernels_.size(); ++i) {
    core::append(text, kernels_.size() > 1 ? core::concat("; ", launches[i]->key.body->name, ": ") : std::string("; "));
    core::append(text, resources_text(*launches[i], kernels_[i]->resources));
  }
  return text;
}

void LoweredKernel::launch_on(const void* call, void* workspace, void* stream) const {
  const auto address = reinterpret_cast<std::uintptr_t>(workspace);
  auto* const aligned =
      reinterpret_cast<std::byte*>((address + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment);
  std::size_t next = 0;
  for (const Step& step : lowering_.steps) {
    if (const auto* launch = std::get_if<Launch>(&step)) {
      run(*launch, *kernels_[next++], call, aligned, stream);
    } else if (const auto& clear = std::get<Clear>(step); clear.bytes > 0) {
      runtime_->clear(aligned + clear.offset, clear.bytes, stream);
    }
  }
}

void LoweredKernel::run(const Launch& launch, const KnownKernel& kernel, const void* call, void* workspace,
                        void* stream) const {
  alignas(64) std::byte block[kMostParameterBytes];
  fill_params(launch, call, workspace, block);
  for (const TensorMapParameter& parameter : launch.tensor_maps) {
    runtime_->encode(bound_map(parameter, call, workspace), block + parameter.param_offset);
  }
  runtime_->launch(*kernel.loaded, launch, block, stream);
}

}  // namespace tilewise::gpu
