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

/// Without a compiler a kernel may still be loaded already, or lie in a bundle or in the cache.
bool needs_compiler(const Lowering& lowering, const Runtime& runtime) {
  return std::any_of(lowering.launches.begin(), lowering.launches.end(), [&](const Launch& launch) {
    return runtime.memo().find(launch.key, launch.shared_bytes) == nullptr &&
           jit::find_compiled(runtime.target(), make_source(launch.key, runtime.traits().machine, false)) == nullptr;
  });
}

}  // namespace

core::Verdict GpuImplementation::judge(const Problem& problem) const {
  const GpuStatus status = status_(core::planning_device(device_));
  if (status.runtime == nullptr) return core::Verdict::refuse(status.refusal);
  const DeviceTraits& traits = status.runtime->traits();
  if (traits.machine != machine_) {
    return core::Verdict::refuse(core::concat("the GPU must be one of ", kFamilies[static_cast<std::size_t>(machine_)],
                                              " (got ", traits.architecture, ")"));
  }
  if (std::string reason = portable_refusal(problem, traits); !reason.empty()) {
    return core::Verdict::refuse(std::move(reason));
  }
  const Lowering lowering = lower(problem, traits);
  if (std::string reason = jit::compiler_reason(status.runtime->target());
      !reason.empty() && needs_compiler(lowering, *status.runtime)) {
    return core::Verdict::refuse(std::move(reason));
  }
  return core::Verdict::accept(lowering.estimated_us);
}

std::unique_ptr<const core::Kernel> GpuImplementation::prepare(const Problem& problem) const {
  return make_portable_kernel(problem, *status_(core::planning_device(device_)).runtime);
}

}  // namespace tilewise::backends::portable
