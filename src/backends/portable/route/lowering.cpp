// Which kernel a route problem takes; see lowering.hpp.
#include "backends/portable/route/lowering.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "backends/portable/route/kernels.hpp"
#include "core/ceil_div.hpp"
#include "core/message.hpp"
#include "operations/route/rules.hpp"

namespace tilewise::backends::portable {
namespace {

using core::ceil_div;

using operations::route::RouteParams;

constexpr std::int32_t kWaves = 4;
constexpr std::int64_t kMostExperts = 1024;  // more would not stay in registers
constexpr double kLaunchUs = 3.5;            // of a kernel that has next to nothing to do (H200)
constexpr double kOfBandwidth = 0.5;         // of memory's, that rows of a few hundred bytes reach
constexpr double kChoiceUs = 0.1;            // a round of a wave's search, one after another

// The device's numbers for options are the host's.
static_assert(static_cast<std::int32_t>(RouteScore::sqrt_softplus) == device::kScoreSqrtSoftplus &&
              static_cast<std::int32_t>(RouteScore::identity) == device::kScoreIdentity &&
              static_cast<std::int32_t>(RouteWeigh::sigmoid_of_chosen) == device::kWeighSigmoidOfChosen &&
              static_cast<std::int32_t>(RouteNormalise::at_least_epsilon) == device::kNormaliseAtLeastEpsilon);

template <typename Params>
void begin(const RouteProblem& p, Params& params) {
  params.shape = {p.tokens, p.num_experts, p.top_k};
  params.factors = {static_cast<std::int32_t>(p.normalise), static_cast<float>(p.epsilon),
                    static_cast<float>(p.routed_scaling_factor), 0};
}

/// What both kernels' configs have.
template <typename Config>
Config config_of(const RouteProblem& p) {
  Config config;
  config.logits_type = route_type_of(p.dtype);
  config.score = static_cast<std::int32_t>(p.score);
  config.weigh = static_cast<std::int32_t>(p.weigh);
  config.chosen = static_cast<std::int32_t>(std::bit_ceil(static_cast<std::uint64_t>(p.top_k)));
  config.waves = kWaves;
  return config;
}

template <typename Kernel>
void add(gpu::LoweringBuilder& builder, const RouteProblem& p, gpu::Family family,
         const typename Kernel::Config& config, const typename Kernel::Params& params) {
  const auto bind_params = [](const void* call, void* block) {
    bind(*static_cast<const RouteParams*>(call), *static_cast<typename Kernel::Params*>(block));
  };
  const gpu::Extent3 grid{static_cast<std::uint32_t>(ceil_div(p.tokens, std::int64_t{kWaves}))};
  builder.launch<Kernel>(family, config, grid, params, bind_params);
}

void add_forward(gpu::LoweringBuilder& builder, const RouteProblem& p, gpu::Family family) {
  auto config = config_of<device::RouteConfig>(p);
  config.bias_type = route_type_of(p.bias);
  const auto lanes = static_cast<std::int64_t>(gpu::lanes(family));
  config.values = static_cast<std::int32_t>(std::bit_ceil(static_cast<std::uint64_t>(ceil_div(p.num_experts, lanes))));
  config.by_logits = p.chosen_by == RouteChosenBy::logits;
  config.groups = p.n_group > 1;
  device::RouteForwardParams params{};
  begin(p, params);
  params.n_group = p.n_group;
  params.topk_group = p.topk_group;
  params.sum_of_two = p.group_value == RouteGroupValue::sum_of_two;
  const bool zero = p.outside_groups == RouteOutsideGroups::zero;
  params.outside_groups = zero ? 0.0f : -std::numeric_limits<float>::infinity();
  add<RouteForward>(builder, p, family, config, params);
}

void add_backward(gpu::LoweringBuilder& builder, const RouteProblem& p, gpu::Family family) {
  device::RouteBwdParams params{};
  begin(p, params);
  add<RouteBwd>(builder, p, family, config_of<device::RouteBwdConfig>(p), params);
}

}  // namespace

operations::route::FeatureSet Portable<operations::Route>::features() {
  using enum operations::route::Feature;
  return {forward,
          backward,
          f32,
          bf16,
          f16,
          i64_ids,
          narrow_weights,
          softmax,
          sigmoid,
          sqrt_softplus,
          identity,
          by_logits,
          bias,
          groups,
          sum_of_two,
          zero_outside,
          softmax_of_chosen,
          sigmoid_of_chosen,
          sum_plus_epsilon,
          at_least_epsilon,
          routed_scaling_factor,
          scale_of_expert};
}

Outcome Portable<operations::Route>::lower(const RouteProblem& problem, const core::DeviceDescription& device,
                                           gpu::Family family) {
  if (problem.num_experts > kMostExperts) {
    return {{}, core::concat("num_experts must be <= ", kMostExperts, " (got ", problem.num_experts, ")")};
  }
  gpu::LoweringBuilder builder;
  if (problem.pass == RoutePass::route) {
    add_forward(builder, problem, family);
  } else {
    add_backward(builder, problem, family);
  }
  builder.append_schedule("a wave a token");
  Outcome outcome{builder.finish(), {}};
  outcome.lowering.estimated_us =
      kLaunchUs + kChoiceUs * static_cast<double>(problem.top_k) +
      1e-3 * operations::route::bytes_moved(problem) / (kOfBandwidth * device.memory_gigabytes_per_second);
  return outcome;
}

double Portable<operations::Route>::emulated_us(const RouteProblem& problem) {
  constexpr double kCallUs = 1000.0, kExpertUs = 1.0, kChoiceLanesUs = 20.0;
  return kCallUs + static_cast<double>(problem.tokens) * (kExpertUs * static_cast<double>(problem.num_experts) +
                                                          kChoiceLanesUs * static_cast<double>(problem.top_k));
}

}  // namespace tilewise::backends::portable
