// The KV cache step's portable kernels under emulation.
#include "backends/emulation/kv_cache.hpp"

#include "backends/cuda/hopper/kv_cache.hpp"
#include "backends/emulation/emulated_call.hpp"
#include "backends/portable/kv_cache/lowering.hpp"
#include "backends/portable/kv_cache/schedule.hpp"
#include "operations/kv_cache/rules.hpp"

namespace tilewise::backends::emulation {
namespace {

/// Rows that TMA can't load go to the portable kernels, as they do on a GPU.
portable::Outcome lower_for(const KvCacheProblem& problem, const core::DeviceDescription& device, gpu::Family family) {
  if (family != gpu::Family::sm90) return portable::lower(problem, device, family);
  return problem.unaligned ? portable::lower(problem, device, gpu::Family::sm80) : hopper::lower(problem, device);
}

constexpr PortableKernels<operations::KvCache> kPortable{
    [](const KvCacheProblem& problem, const core::DeviceDescription& device, gpu::Family family) {
      return lower_for(problem, device, family).lowering;
    },
    [](KvCacheProblem& problem, const auto& call) { problem.unaligned = !portable::is_aligned(call); }};

}  // namespace

operations::kv_cache::FeatureSet EmulatedKvCache::supported() const noexcept {
  return family_ == gpu::Family::sm90 ? hopper::kv_cache_features() : portable::kv_cache_features();
}

core::Verdict EmulatedKvCache::judge(const KvCacheProblem& problem, const core::DeviceDescription&) const {
  portable::Outcome outcome = lower_for(problem, runtime_of(family_)(0).description(), family_);
  if (!outcome.refusal.empty()) return core::Verdict::refuse(std::move(outcome.refusal));
  // The order of magnitude on one thread, compilation aside, and above the reference's: none is chosen by itself.
  constexpr double kCallUs = 1000.0, kRowUs = 10.0, kElementUs = 0.2;
  const auto f = [](std::int64_t n) { return static_cast<double>(n); };
  const double rows = f(operations::kv_cache::rows_of_queries(problem)) * f(problem.num_heads_q);
  const double appended = f(operations::kv_cache::rows_of_new_keys(problem)) * f(problem.num_heads_k);
  const double scores = rows * f(operations::kv_cache::capacity_of(problem));
  const double us = kCallUs + (rows + appended) * kRowUs +
                    (scores + appended) * f(problem.head_dim + problem.head_dim_v) * kElementUs;
  return core::Verdict::accept(us, std::make_unique<EmulatedCall<operations::KvCache>>(
                                       problem, family_, std::move(outcome.lowering), kPortable));
}

}  // namespace tilewise::backends::emulation
