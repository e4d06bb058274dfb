// The KV cache step as attention over the cache's tensors; see kv_cache.hpp.
#include "backends/cuda/hopper/kv_cache.hpp"

#include <algorithm>
#include <utility>

#include "backends/cuda/hopper/cache_step.hpp"
#include "backends/cuda/hopper/estimate.hpp"
#include "backends/cuda/hopper/forward_launch.hpp"
#include "backends/cuda/hopper/latent.hpp"
#include "backends/cuda/hopper/tile_lists.hpp"
#include "backends/portable/attention/block_states.hpp"
#include "backends/portable/attention/functions.hpp"
#include "backends/portable/kv_cache/implementation.hpp"
#include "backends/portable/kv_cache/schedule.hpp"
#include "core/ceil_div.hpp"
#include "core/message.hpp"
#include "gpu/lowered_kernel.hpp"
#include "operations/attention/call.hpp"
#include "operations/kv_cache/rules.hpp"

namespace tilewise::backends::hopper {
namespace {

void bind_forward_step(const void* call, void* block) {
  bind_step(call, *static_cast<device::HopperForwardParams*>(block));
}

void bind_with_tables(const void* call, void* block) {
  auto& params = *static_cast<device::WithTables<device::HopperForwardParams>*>(block);
  bind_step(call, static_cast<device::HopperForwardParams&>(params));
  portable::bind_tables(CacheCalls::params_of(call).tables, params.tables);
}

void bind_step_mask_tiles(const void* call, void* block) {
  auto& params = *static_cast<device::WithTables<device::HopperMaskTilesParams>*>(block);
  params.shape = CacheCalls::of(call);
  params.cache = portable::cache_of(CacheCalls::params_of(call));
  portable::bind_tables(CacheCalls::params_of(call).tables, params.tables);
}

/// A launch that waits itself for the one before it.
void begin_early(gpu::Step& step, const core::DeviceDescription& device) {
  std::get<gpu::Launch>(step).programmatic = portable::traits_of(device, gpu::Family::sm80).overlaps_steps;
}

/// The portable launch that appends, before those from `first` on; what comes next begins while it ends.
void insert_append(KvCacheProblem p, const core::DeviceDescription& device, std::size_t first,
                   gpu::Lowering& lowering) {
  constexpr double kBetweenUs = 3.0;  // until one launch sees what the other has written
  p.call = KvCacheCall::append_kv;
  const gpu::Lowering append = portable::lower(p, device, gpu::Family::sm80).lowering;
  if (append.steps.empty()) return;
  if (first < lowering.steps.size()) begin_early(lowering.steps[first], device);
  lowering.steps.insert(lowering.steps.begin() + static_cast<std::ptrdiff_t>(first), append.steps.begin(),
                        append.steps.end());
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

/// The launches that find out what mask_mod leaves, which no key has a part in, and how long they take.
portable::MaskTilesStep add_masks(const KvCacheProblem& p, const Problem& attention, const ForwardSchedule& schedule,
                                  const core::DeviceDescription& device, gpu::LoweringBuilder& builder) {
  const portable::DeviceTraits traits = portable::traits_of(device, gpu::Family::sm80);
  const device::HopperForwardConfig& forward = schedule.config;
  const double states_us = portable::add_block_states(operations::kv_cache::blocked_scores(p), traits, builder,
                                                      portable::bind_block_states<operations::kv_cache::KvCacheParams>);
  device::HopperMaskTilesConfig config;
  config.own = tile_order(attention, schedule, device.multiprocessors).queries_per_warpgroup;
  config.parts = forward.consumers();
  config.streamed = forward.block_n;
  config.cached = 1;
  const SkippedTiles skipped{config, function_use(attention, forward), bind_step_mask_tiles,
                             forward.pack_gqa ? portable::group_of(attention) : 1};
  portable::MaskTilesStep step = add_tile_lists(attention, traits, skipped, builder);
  step.estimated_us += states_us;
  return step;
}

std::string functions_refusal(const Problem& attention) {
  if (!portable::has_functions(attention)) return {};
  if (std::string reason = portable::functions_refusal(attention); !reason.empty()) return reason;
  return portable::calls_refusal(attention);
}

std::string step_refusal(const KvCacheProblem& p) {
  if (operations::kv_cache::appends_alone(p)) return "call must be kv_cache_attention (got append_kv)";
  if (p.top_k > 0 && !p.mla) return "with key_indices, mla must be 1 (got 0)";
  if (p.mla && portable::has_functions(portable::attention_of(p))) {
    return "with mla, score_mod, mask_mod and block_mask must be none (got one)";
  }
  if (p.page_size % device::kPageUnit != 0) {
    return core::concat("page_size must be a multiple of ", device::kPageUnit, " (got ", p.page_size, ")");
  }
  if (p.rotary_dim > 0 && !operations::kv_cache::rotates_in_chunks(p.rotary_dim, p.rotary_offset)) {
    return core::concat("rotary_dim must be a multiple of 16 and rotary_offset of 8 (got ", p.rotary_dim, " and ",
                        p.rotary_offset, ")");
  }
  return {};
}

/// first: the first step that new keys have a part in.
gpu::Outcome lower_attention(const KvCacheProblem& p, const core::DeviceDescription& device, std::size_t& first) {
  Problem attention = portable::attention_of(p);
  attention.seqused_k = true;  // its lengths are read by the kernel in every case
  if (std::string reason = functions_refusal(attention); !reason.empty()) return {{}, std::move(reason)};
  if (std::string reason = refusal_of(attention); !reason.empty()) return {{}, std::move(reason)};
  const ForwardSchedule schedule = forward_schedule(attention, device, p.num_splits, p.page_size);
  gpu::LoweringBuilder builder(portable::traits_of(device, gpu::Family::sm80).overlaps_steps);
  const bool packs = schedule.config.pack_gqa != 0;
  const portable::MaskTilesStep masks = add_masks(p, attention, schedule, device, builder);
  first = builder.steps();
  const MapBinds maps = p.rotary_dim > 0 ? add_rotation(p, attention, packs, builder) : map_binds<CacheCalls>(packs);
  std::string refusal = add_forward(attention, schedule, device,
                                    portable::has_functions(attention) ? bind_with_tables : bind_forward_step, maps,
                                    builder, masks.classes);
  if (!refusal.empty()) return {{}, std::move(refusal)};
  if (schedule.config.split) add_cache_combine(attention, schedule.splits, builder);
  gpu::Outcome outcome{builder.finish(), {}};
  if (p.rotary_dim > 0 && outcome.lowering.steps.size() > first + 1) {
    begin_early(outcome.lowering.steps[first + 1], device);
  }
  constexpr double kLengthUs = 3.0;    // a block's first keys wait for its sequence's length
  constexpr double kRotationUs = 4.0;  // of a launch that takes its time from memory, and the wait for it
  outcome.lowering.estimated_us = kLengthUs + masks.estimated_us + (p.rotary_dim > 0 ? kRotationUs : 0.0) +
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
          key_indices,   score_mod,
          mask_mod,      block_mask};
}

gpu::Outcome lower(const KvCacheProblem& p, const core::DeviceDescription& device) {
  if (std::string reason = step_refusal(p); !reason.empty()) return {{}, std::move(reason)};
  std::size_t first = 0;
  gpu::Outcome outcome = p.mla ? lower_latent(p, device) : lower_attention(p, device, first);
  if (p.append && outcome.refusal.empty()) insert_append(p, device, first, outcome.lowering);
  return outcome;
}

core::Verdict KvCacheImplementation::judge(const KvCacheProblem& problem, const core::DeviceDescription& device) const {
  return gpu::judge_lowered(device, gpu::Family::sm90, find_runtime_, [&] { return lower(problem, device); });
}

gpu::DescribedCall KvCacheImplementation::contiguous_call(const core::ProblemView& problem) const {
  return portable::KvCacheImplementation("", gpu::Family::sm80, find_runtime_).contiguous_call(problem);
}

}  // namespace tilewise::backends::hopper
