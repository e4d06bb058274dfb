// See implementation.hpp.
#include "backends/portable/kv_cache/implementation.hpp"

#include "backends/contiguous_call.hpp"
#include "gpu/lowered_kernel.hpp"

namespace tilewise::backends::portable {

core::Verdict KvCacheImplementation::judge(const KvCacheProblem& problem, const core::DeviceDescription& device) const {
  return gpu::judge_lowered(device, family_, find_runtime_, [&] { return lower(problem, device, family_); });
}

gpu::DescribedCall KvCacheImplementation::contiguous_call(const core::ProblemView& problem) const {
  return backends::contiguous_call<operations::KvCache>(problem.as<KvCacheProblem>());
}

}  // namespace tilewise::backends::portable
