// Attention's launch, and another that joins parts of the keys.
#include "backends/cuda/hopper/lowering.hpp"

#include "backends/cuda/hopper/bwd_lowering.hpp"
#include "backends/cuda/hopper/combine.hpp"
#include "backends/cuda/hopper/estimate.hpp"
#include "backends/cuda/hopper/forward_launch.hpp"
#include "backends/cuda/hopper/tile_lists.hpp"
#include "backends/portable/attention/bind.hpp"
#include "backends/portable/attention/block_states.hpp"
#include "backends/portable/attention/clear_rest.hpp"
#include "backends/portable/attention/functions.hpp"
#include "backends/portable/traits.hpp"
#include "operations/attention/rules.hpp"

namespace tilewise::backends::hopper {
namespace {

using device::AttentionParams;

struct Calls {
  static const AttentionParams& of(const void* call) { return *static_cast<const AttentionParams*>(call); }
  static const AttentionParams& keys_of(const void* call) { return of(call); }
};

void bind_attention(const void* call, void* block) {
  const AttentionParams& from = Calls::of(call);
  auto& params = *static_cast<device::HopperForwardParams*>(block);
  bind_rows(from, params);
  params.q_scale = from.q_scale;
  params.k_scale = from.k_scale;
  params.v_scale = from.v_scale;
  params.k_starts = odd_starts(from.k);
  params.v_starts = odd_starts(from.v);
}

void bind_with_tables(const void* call, void* block) {
  auto& params = *static_cast<device::WithTables<device::HopperForwardParams>*>(block);
  bind_attention(call, static_cast<device::HopperForwardParams*>(&params));
  portable::bind_tables(Calls::of(call), params.tables);
}

/// What mask_mod leaves of the rows of each warpgroup.
portable::MaskTilesStep add_mask_tiles(const Problem& p, const device::HopperForwardConfig& forward,
                                       const portable::DeviceTraits& traits, gpu::LoweringBuilder& builder) {
  device::HopperMaskTilesConfig config;
  config.own = device::HopperForwardConfig::kRows;
  config.parts = forward.consumers();
  config.streamed = forward.block_n;
  return add_tile_lists(p, traits, {config, function_use(p, forward), bind_mask_tiles, 1}, builder);
}

std::string functions_refusal(const Problem& p) {
  if (!portable::has_functions(p)) return {};
  if (std::string reason = portable::functions_refusal(p); !reason.empty()) return reason;
  return portable::calls_refusal(p);
}

void add_parts_combine(const Problem& p, std::int64_t splits, gpu::LoweringBuilder& builder) {
  Problem stored = p;  // of fp8 it sees the sums alone
  stored.dtype = operations::attention::out_dtype_of(p);
  const auto bind_params = [](const void* call, void* block) {
    portable::bind(Calls::of(call), *static_cast<device::CombineParams*>(block));
  };
  add_combine<portable::Combine>(portable::combine_config(stored), p, splits, bind_params, builder);
}

ForwardSchedule schedule_of(const Problem& p, const core::DeviceDescription& device) {
  const std::string* tuned = tuned_name(p, device);
  return tuned != nullptr ? tuned_schedule(p, device, *tuned) : forward_schedule(p, device);
}

}  // namespace

operations::attention::FeatureSet attention_features() {
  using enum operations::attention::Feature;
  return {bf16,        f16,          fp8_e4m3,    f16_out,   forward,    gqa,       head_dim_v,    packed,
          window_left, window_right, top_left,    softcap,   scale_sign, bias,      bias_boolean,  alibi,
          sink,        dropout,      seed_tensor, seqused_q, seqused_k,  leftpad_k, deterministic, batch_invariant,
          backward,    dlse,         dsink,       dbias,     clear_rest, score_mod, mask_mod,      block_mask};
}

Outcome lower(const Problem& problem, const core::DeviceDescription& device) {
  const Problem p = portable::with_block_states(problem);
  if (std::string reason = refusal_of(p); !reason.empty()) return {{}, std::move(reason)};
  if (std::string reason = functions_refusal(p); !reason.empty()) return {{}, std::move(reason)};
  if (p.operation == Operation::attention_backward) return lower_backward(p, device);
  const ForwardSchedule schedule = schedule_of(p, device);
  const portable::DeviceTraits traits = portable::traits_of(device, gpu::Family::sm80);
  gpu::LoweringBuilder builder(traits.overlaps_steps);
  const double states_us = portable::add_block_states(p, traits, builder);
  const portable::MaskTilesStep tiles = add_mask_tiles(p, schedule.config, traits, builder);
  std::string refusal = add_forward(p, schedule, device, portable::has_functions(p) ? bind_with_tables : bind_attention,
                                    map_binds<Calls>(schedule.config.pack_gqa), builder, tiles.classes);
  if (!refusal.empty()) return {{}, std::move(refusal)};
  if (schedule.config.split) add_parts_combine(p, schedule.splits, builder);
  const double clear_us = portable::add_clear_rest(p, traits, builder);
  Outcome outcome{builder.finish(), {}};
  outcome.lowering.estimated_us =
      Estimator(p, device).forward_us(schedule.config, schedule.splits) + tiles.estimated_us + states_us + clear_us;
  return outcome;
}

}  // namespace tilewise::backends::hopper
