// See moe_steps.hpp.
#include "backends/cuda/hopper/moe_steps.hpp"

#include "operations/activation.hpp"

namespace tilewise::backends::hopper {

static_assert(static_cast<std::int32_t>(MoeClamp::before) == static_cast<std::int32_t>(device::ActivationClamp::before),
              "clamps have the device's numbers");
static_assert(static_cast<std::int32_t>(MoeClamp::after) == static_cast<std::int32_t>(device::ActivationClamp::after));

std::int32_t element_type(DType dtype) { return dtype == DType::f16 ? device::kF16 : device::kBf16; }

std::int32_t experts_of_lane(const MoeProblem& p) { return p.num_experts <= 128 ? 4 : 8; }

device::MoeShape shape_of(const MoeProblem& p) {
  return {static_cast<std::int32_t>(p.tokens),
          static_cast<std::int32_t>(p.top_k),
          static_cast<std::int32_t>(p.hidden),
          static_cast<std::int32_t>(p.intermediate),
          static_cast<std::int32_t>(p.num_experts),
          0,
          p.first_expert};
}

device::ActivationNumbers numbers_of(const MoeProblem& p) {
  return {static_cast<float>(p.alpha), static_cast<float>(p.limit)};
}

void set_activation(const MoeProblem& p, device::MoeActivationConfig& config) {
  config.activation = static_cast<std::int32_t>(operations::kind_of(p.activation));
  config.clamp = static_cast<std::int32_t>(p.clamp);
  config.gated = p.gate != MoeGate::none;
  config.weight_on_input = p.weight_on_input;
  config.biases = p.gate_up_bias != MoeVector::none || p.down_bias != MoeVector::none;
}

void add_moe_sort(gpu::LoweringBuilder& builder, const MoeProblem& p) {
  device::MoeSortConfig config;
  config.own_experts = experts_of_lane(p);
  device::MoeSortParams params{};
  params.shape = shape_of(p);
  params.chunks = static_cast<std::int32_t>(core::ceil_div(params.shape.pairs(), device::MoeSortConfig::kChunk));
  params.most_experts = config.most_experts();
  for (config.counts = params.chunks > 1 ? 1 : 0; config.counts >= 0; --config.counts) {
    add_moe_step<MoeSort>(builder, config, params.chunks, params);
  }
  builder.append_schedule("pairs sorted");
}

}  // namespace tilewise::backends::hopper
