// Judges problems for the GPU that this thread plans for.
#include "backends/portable/gpu_implementation.hpp"

#include <algorithm>
#include <array>

#include "core/device.hpp"
#include "core/message.hpp"
#include "jit/kernel_cache.hpp"

namespace tilewise::backends::portable {
namespace {

/// Indexed by device::Machine.
constexpr std::array<std::string_view, 3> kFamilies{"NVIDIA's", "AMD's CDNA", "AMD's RDNA"};

}  // namespace

std::string runtime_refusal(const Problem& problem, const Runtime& runtime) {
  if (std::string reason = portable_refusal(problem, runtime.traits()); !reason.empty()) return reason;
  std::string reason = jit::compiler_reason(runtime.target());
  if (reason.empty()) return reason;
  const Lowering lowering = lower(problem, runtime.traits());
  const bool host = runtime.target().kind == jit::TargetKind::host;
  const bool all_there = std::ranges::all_of(lowering.launches, [&](const Launch& launch) {
    return runtime.memo().find(launch.key, launch.shared_bytes) != nullptr ||
           jit::find_compiled(runtime.target(), make_source(launch.key, runtime.traits().machine, host)) != nullptr;
  });
  return all_there ? std::string() : reason;
}

core::Verdict GpuImplementation::judge(const Problem& problem) const {
  const GpuStatus status = status_(core::planning_device(device_));
  if (status.runtime == nullptr) return core::Verdict::refuse(status.refusal);
  const DeviceTraits& traits = status.runtime->traits();
  if (traits.machine != machine_) {
    return core::Verdict::refuse(core::concat("the GPU must be one of ", kFamilies[static_cast<std::size_t>(machine_)],
                                              " (got ", traits.architecture, ")"));
  }
  if (std::string reason = runtime_refusal(problem, *status.runtime); !reason.empty()) {
    return core::Verdict::refuse(std::move(reason));
  }
  return core::Verdict::accept(lower(problem, traits).estimated_us);
}

std::unique_ptr<const core::Kernel> GpuImplementation::prepare(const Problem& problem) const {
  return make_portable_kernel(problem, *status_(core::planning_device(device_)).runtime);
}

}  // namespace tilewise::backends::portable
