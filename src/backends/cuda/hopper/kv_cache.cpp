// The KV cache step as attention over the cache's tensors; see kv_cache.hpp.
#include "backends/cuda/hopper/kv_cache.hpp"

#include <algorithm>
#include <utility>

#include "backends/cuda/hopper/cache_step.hpp"
#include "backends/cuda/hopper/estimate.hpp"
#include "backends/cuda/hopper/forward_launch.hpp"
#include "backends/cuda/hopper/latent.hpp"
#include "backends/portable/kv_cache/implementation.hpp"
#include "backends/portable/kv_cache/schedule.hpp"
#include "core/ceil_div.hpp"
#include "core/message.hpp"
#include "gpu/lowered_kernel.hpp"
#include "operations/attention/call.hpp"
#include "operations/kv_cache/rules.hpp"

namespace tilewise::backends::hopper {
namespace {

void bind(const void* call, void* block) { bind_step(call, *static_cast<device::HopperForwardParams*>(block)); }

/// A launch that waits itself for the one before it.
void begin_early(gpu::Step& step, const core::DeviceDescription& device) {
  std::get<gpu::Launch>(step).programmatic = portable::traits_of(device, gpu::Family::sm80).overlaps_steps;
}

/// The portable launch that appends, before all others; what comes next begins while it ends.
void prepend_append(KvCacheProblem p, const core::DeviceDescription& device, gpu::Lowering& lowering) {
  constexpr double kBetweenUs = 3.0;  // until one launch sees what the other has written
  p.call = KvCacheCall::append_kv;
  const gpu::Lowering append = portable::lower(p, device, gpu::Family::sm80).lowering;
  if (append.steps.empty()) return;
  if (!lowering.steps.empty()) begin_early(lowering.steps.front(), device);
  lowering.steps.insert(lowering.steps.begin(), append.steps.begin(), append.steps.end());
  lowering.schedule = core::concat(append.schedule, "; ", lowering.schedule);
  lowering.estimated_us += append.estimated_us + kBetweenUs;
}

/// The launch that rotates queries into the workspace, and how they are found there.
MapBinds add_rotation(const KvCacheProblem& p, const Problem& attention, bool packs, gpu::LoweringBuilder& builder) {
  using Kernel = portable::RotateQueries;
  const device::AppendKvConfig config = portable::rotate_queries_config(p);
  Kernel::Params params{};
  params.shape = operations::attention::shape_of(attention);
  params.rows = operations::kv_cache::rows_of_queries(p);
  const std::int64_t units = params.rows * p.num_heads_q * device::append_units(p.head_dim, 0, p.rotary_dim);
  const std::int64_t blocks = core::ceil_div(units, std::int64_t{Kernel::threads(config, gpu::Family::sm80)});
  const auto bind = [](const void* call, void* block) {
    portable::bind(CacheCalls::params_of(call), *static_cast<Kernel::Params*>(block));
  };
  builder.launch<Kernel>(gpu::Family::sm80, config, {static_cast<std::uint32_t>(blocks)}, params, bind);
  builder.append_schedule("queries rotated");
  MapBinds maps = map_binds<RotatedCalls>(packs);
  maps.q_part = Kernel::kRotated;
  return maps;
}

std::string step_refusal(const KvCacheProblem& p) {
  if (operations::kv_cache::appends_alone(p)) return "call must be kv_cache_attention (got append_kv)";
  if (p.top_k > 0 && !p.mla) return "with key_indices, mla must be 1 (got 0)";
  if (p.page_size % device::kPageUnit != 0) {
    return core::concat("page_size must be a multiple of ", device::kPageUnit, " (got ", p.page_size, ")");
  }
  if (p.rotary_dim > 0 && !operations::kv_cache::rotates_in_chunks(p.rotary_dim, p.rotary_offset)) {
    return core::concat("rotary_dim must be a multiple of 16 and rotary_offset of 8 (got ", p.rotary_dim, " and ",
                        p.rotary_offset, ")");
  }
  return {};
}

gpu::Outcome lower_attention(const KvCacheProblem& p, const core::DeviceDescription& device) {
  Problem attention = portable::attention_of(p);
  attention.seqused_k = true;  // its lengths are read by the kernel in every case
  if (std::string reason = refusal_of(attention); !reason.empty()) return {{}, std::move(reason)};
  ForwardSchedule schedule = forward_schedule(attention, device, p.num_splits);
  schedule.config.cached = 1;
  schedule.config.turned_columns = 0;  // boxes of pages load columns in their order
  schedule.config.page_size = static_cast<std::int32_t>(p.page_size);
  gpu::LoweringBuilder builder(portable::traits_of(device, gpu::Family::sm80).overlaps_steps);
  const bool packs = schedule.config.pack_gqa != 0;
  const MapBinds maps = p.rotary_dim > 0 ? add_rotation(p, attention, packs, builder) : map_binds<CacheCalls>(packs);
  if (std::string reason = add_forward(attention, schedule, device, bind, maps, builder); !reason.empty()) {
    return {{}, std::move(reason)};
  }
  if (schedule.config.split) add_cache_combine(attention, schedule.splits, builder);
  gpu::Outcome outcome{builder.finish(), {}};
  if (p.rotary_dim > 0 && outcome.lowering.steps.size() > 1) begin_early(outcome.lowering.steps[1], device);
  constexpr double kLengthUs = 3.0;    // a block's first keys wait for its sequence's length
  constexpr double kRotationUs = 4.0;  // of a launch that takes its time from memory, and the wait for it
  outcome.lowering.estimated_us = kLengthUs + (p.rotary_dim > 0 ? kRotationUs : 0.0) +
                                  Estimator(attention, device).forward_us(schedule.config, schedule.splits);
  return outcome;
}

}  // namespace

operations::kv_cache::FeatureSet kv_cache_features() {
  using enum operations::kv_cache::Feature;
  return {attend,        append,
          bf16,          f16,
          packed,        paged,
          mla,           num_splits,
          cache_seqlens, cache_batch_idx,
          cache_leftpad, gqa,
          head_dim_v,    window_left,
          window_right,  scale_sign,
          softcap,       alibi,
          sink,          batch_invariant,
          rotary,        rotary_interleaved,
          key_indices};
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

gpu::DescribedCall KvCacheImplementation::contiguous_call(const core::ProblemView& problem) const {
  return portable::KvCacheImplementation("", gpu::Family::sm80, find_runtime_).contiguous_call(problem);
}

}  // namespace tilewise::backends::hopper
