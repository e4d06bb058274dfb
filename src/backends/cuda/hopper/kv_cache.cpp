// The KV cache step as attention over the cache's tensors; see kv_cache.hpp.
#include "backends/cuda/hopper/kv_cache.hpp"

#include <algorithm>
#include <utility>

#include "backends/cuda/hopper/cache_step.hpp"
#include "backends/cuda/hopper/estimate.hpp"
#include "backends/cuda/hopper/forward_launch.hpp"
#include "backends/cuda/hopper/latent.hpp"
#include "backends/portable/kv_cache/implementation.hpp"
#include "core/message.hpp"
#include "gpu/lowered_kernel.hpp"
#include "operations/kv_cache/rules.hpp"

namespace tilewise::backends::hopper {
namespace {

void bind(const void* call, void* block) { bind_step(call, *static_cast<device::HopperForwardParams*>(block)); }

/// The step's attention, whose lengths are read by the kernel in every case.
Problem attention_of(const KvCacheProblem& p) {
  Problem attention = portable::attention_of(p);
  attention.seqused_k = true;
  return attention;
}

/// The portable launch that appends, before all others; the attention begins while it ends.
void prepend_append(KvCacheProblem p, const core::DeviceDescription& device, gpu::Lowering& lowering) {
  constexpr double kBetweenUs = 3.0;  // until one launch sees what the other has written
  p.call = KvCacheCall::append_kv;
  const gpu::Lowering append = portable::lower(p, device, gpu::Family::sm80).lowering;
  if (append.steps.empty()) return;
  if (!lowering.steps.empty()) {
    std::get<gpu::Launch>(lowering.steps.front()).programmatic =
        portable::traits_of(device, gpu::Family::sm80).overlaps_steps;
  }
  lowering.steps.insert(lowering.steps.begin(), append.steps.begin(), append.steps.end());
  lowering.schedule = core::concat(append.schedule, "; ", lowering.schedule);
  lowering.estimated_us += append.estimated_us + kBetweenUs;
}

std::string step_refusal(const KvCacheProblem& p) {
  if (operations::kv_cache::appends_alone(p)) return "call must be kv_cache_attention (got append_kv)";
  if (p.page_size % device::kPageUnit != 0) {
    return core::concat("page_size must be a multiple of ", device::kPageUnit, " (got ", p.page_size, ")");
  }
  return {};
}

gpu::Outcome lower_attention(const KvCacheProblem& p, const core::DeviceDescription& device) {
  const Problem attention = attention_of(p);
  if (std::string reason = refusal_of(attention); !reason.empty()) return {{}, std::move(reason)};
  ForwardSchedule schedule = forward_schedule(attention, device, p.num_splits);
  schedule.config.cached = 1;
  schedule.config.page_size = static_cast<std::int32_t>(p.page_size);
  gpu::LoweringBuilder builder(portable::traits_of(device, gpu::Family::sm80).overlaps_steps);
  const MapBinds maps = map_binds<CacheCalls>(schedule.config.pack_gqa);
  if (std::string reason = add_forward(attention, schedule, device, bind, maps, builder); !reason.empty()) {
    return {{}, std::move(reason)};
  }
  if (schedule.config.split) add_cache_combine(attention, schedule.splits, builder);
  gpu::Outcome outcome{builder.finish(), {}};
  constexpr double kLengthUs = 3.0;  // a block's first keys wait for its sequence's length
  outcome.lowering.estimated_us = kLengthUs + Estimator(attention, device).forward_us(schedule.config, schedule.splits);
  return outcome;
}

}  // namespace

operations::kv_cache::FeatureSet kv_cache_features() {
  using enum operations::kv_cache::Feature;
  return {attend,        append,  bf16,       f16,           packed,
          paged,         mla,     num_splits, cache_seqlens, cache_batch_idx,
          cache_leftpad, gqa,     head_dim_v, window_left,   window_right,
          scale_sign,    softcap, alibi,      sink,          batch_invariant};
}

gpu::Outcome lower(const KvCacheProblem& p, const core::DeviceDescription& device) {
  if (std::string reason = step_refusal(p); !reason.empty()) return {{}, std::move(reason)};
  gpu::Outcome outcome = p.mla ? lower_latent(p, device) : lower_attention(p, device);
  if (p.append && outcome.refusal.empty()) prepend_append(p, device, outcome.lowering);
  return outcome;
}

core::Verdict KvCacheImplementation::judge(const KvCacheProblem& problem, const core::DeviceDescription& device) const {
  return gpu::judge_lowered(device, gpu::Family::sm90, find_runtime_, [&] { return lower(problem, device); });
}

std::shared_ptr<const void> KvCacheImplementation::contiguous_call(const core::ProblemView& problem) const {
  return portable::KvCacheImplementation("", gpu::Family::sm80, find_runtime_).contiguous_call(problem);
}

}  // namespace tilewise::backends::hopper
