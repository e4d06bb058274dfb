// Attention's launch, and another that joins parts of the keys.
#include "backends/cuda/hopper/lowering.hpp"

#include "backends/cuda/hopper/bwd_lowering.hpp"
#include "backends/cuda/hopper/estimate.hpp"
#include "backends/cuda/hopper/forward_launch.hpp"
#include "backends/portable/attention/bind.hpp"
#include "backends/portable/attention/schedule.hpp"
#include "backends/portable/traits.hpp"
#include "core/ceil_div.hpp"
#include "operations/attention/call.hpp"
#include "operations/attention/rules.hpp"

namespace tilewise::backends::hopper {
namespace {

using core::ceil_div, device::AttentionParams;

struct Calls {
  static const AttentionParams& of(const void* call) { return *static_cast<const AttentionParams*>(call); }
};

void bind(const void* call, void* block) {
  const AttentionParams& from = Calls::of(call);
  auto& params = *static_cast<device::HopperForwardParams*>(block);
  params.shape = from;
  params.score = from;
  params.out = from.out;
  params.softmax_lse = from.softmax_lse;
  params.sink = from.sink;
  params.q_scale = from.q_scale;
  params.k_scale = from.k_scale;
  params.v_scale = from.v_scale;
}

/// The portable kernel that joins parts of the keys.
void add_combine(const Problem& p, std::int64_t splits, gpu::LoweringBuilder& builder) {
  Problem stored = p;  // of fp8 it sees the sums alone
  stored.dtype = operations::attention::out_dtype_of(p);
  const device::CombineConfig config = portable::combine_config(stored);
  device::CombineParams params{};
  params.shape = operations::attention::shape_of(p);
  const std::int64_t tiles = ceil_div(p.seqlen_q, splits > device::kRowSplits ? 1 : config.waves);
  params.grid = device::tile_grid(tiles, 1, p.num_heads_q, p.num_heads_q / p.num_heads_k);
  params.num_splits = splits;
  const auto bind_params = [](const void* call, void* block) {
    portable::bind(Calls::of(call), *static_cast<device::CombineParams*>(block));
  };
  const gpu::Extent3 grid{static_cast<std::uint32_t>(tiles * p.num_heads_q * p.batch_size)};
  builder.launch<portable::Combine>(gpu::Family::sm80, config, grid, params, bind_params);
}

}  // namespace

operations::attention::FeatureSet attention_features() {
  using enum operations::attention::Feature;
  return {bf16,        f16,          fp8_e4m3,    f16_out,   forward,    gqa,       head_dim_v,    packed,
          window_left, window_right, top_left,    softcap,   scale_sign, bias,      bias_boolean,  alibi,
          sink,        dropout,      seed_tensor, seqused_q, seqused_k,  leftpad_k, deterministic, batch_invariant,
          backward,    dlse,         dsink};
}

Outcome lower(const Problem& p, const core::DeviceDescription& device) {
  if (std::string reason = refusal_of(p); !reason.empty()) return {{}, std::move(reason)};
  if (p.operation == Operation::attention_backward) return lower_backward(p, device);
  const ForwardSchedule schedule = forward_schedule(p, device);
  gpu::LoweringBuilder builder(portable::traits_of(device, gpu::Family::sm80).overlaps_steps);
  std::string refusal = add_forward(p, schedule, device, bind, map_binds<Calls>(schedule.config.pack_gqa), builder);
  if (!refusal.empty()) return {{}, std::move(refusal)};
  if (schedule.config.split) add_combine(p, schedule.splits, builder);
  Outcome outcome{builder.finish(), {}};
  outcome.lowering.estimated_us = Estimator(p, device).forward_us(schedule.config, schedule.splits);
  return outcome;
}

}  // namespace tilewise::backends::hopper
