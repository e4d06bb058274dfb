// Route on the way to a GPU's kernels: its configs, one launch without a workspace, and that the tables of pointers
// know every pointer.
#include <set>

#include "backends/portable/route/kernels.hpp"
#include "backends/portable/route/lowering.hpp"
#include "support.hpp"

namespace tilewise::backends::portable {
namespace {

using gpu::ParameterField;

template <typename Visit>
void for_each_route_kernel(Visit&& visit) {
  visit.template operator()<RouteForward>();
  visit.template operator()<RouteBwd>();
}

Outcome route_outcome(std::string_view architecture, std::string_view text) {
  const RouteProblem problem =
      parse_problem(core::concat(text, " device=", to_string(device_of(architecture).device.type)));
  return Portable<operations::Route>::lower(problem, device_of(architecture), family_of(architecture));
}

gpu::Lowering route_lowered(std::string_view architecture, std::string_view text) {
  Outcome outcome = route_outcome(architecture, text);
  EXPECT_EQ(outcome.refusal, "") << text;
  return std::move(outcome.lowering);
}

TEST(RouteParameters, CoverEachBlock) {
  for_each_route_kernel([]<typename Kernel> {
    std::size_t end = 0;
    for (const ParameterField& field : gpu::fields_of<typename Kernel::Params>()) {
      EXPECT_EQ(field.offset, end) << Kernel::kName << "." << field.name;
      end = field.offset + field.size;
    }
    EXPECT_EQ(end, sizeof(typename Kernel::Params)) << Kernel::kName;
  });
}

TEST(RouteParameters, TheTablesKnowEveryPointer) {
  for_each_route_kernel([]<typename Kernel> {
    const typename Kernel::Params params{};
    std::set<std::size_t> known;
    Kernel::for_each_pointer(params, [&known](const gpu::Region&, std::size_t offset) { known.insert(offset); });
    for (const ParameterField& field : gpu::fields_of<typename Kernel::Params>()) {
      EXPECT_EQ(field.is_pointer(), known.contains(field.offset)) << Kernel::kName << "." << field.name;
    }
  });
}

TEST(RouteLowering, LanesHoldExpertsAndWavesTokens) {
  for (const std::string_view architecture : kMachines) {
    const std::int64_t lanes = gpu::lanes(family_of(architecture));
    for (const auto& [experts, values] :
         {std::pair{1, 1}, {32, 1}, {65, lanes == 64 ? 2 : 4}, {256, lanes == 64 ? 4 : 8}}) {
      const gpu::Lowering lowering =
          route_lowered(architecture, core::concat("route tokens=9 top_k=1 num_experts=", experts));
      ASSERT_EQ(lowering.launches().size(), 1u);
      EXPECT_EQ(gpu::config_of<RouteForward>(lowering.launches()[0]->key).values, values) << experts;
      EXPECT_EQ(lowering.launches()[0]->grid, gpu::Extent3{3});
      EXPECT_EQ(lowering.workspace_bytes, 0u);
    }
  }
}

TEST(RouteLowering, OptionsBecomeConfigsOrParameters) {
  const gpu::Lowering lowering =
      route_lowered("sm_90a",
                    "route dtype=bf16 tokens=1 num_experts=256 top_k=6 score=sigmoid bias=f16 n_group=8 topk_group=4 "
                    "outside_groups=zero normalise=at_least_epsilon epsilon=0.25 routed_scaling_factor=2.5");
  const gpu::Launch& launch = *lowering.launches()[0];
  const auto config = gpu::config_of<RouteForward>(launch.key);
  EXPECT_EQ(config.logits_type, device::kRouteBf16);
  EXPECT_EQ(config.bias_type, device::kRouteF16);
  EXPECT_EQ(config.score, device::kScoreSigmoid);
  EXPECT_EQ(config.chosen, 8);
  EXPECT_EQ(config.groups, 1);
  device::RouteForwardParams params{};
  ASSERT_EQ(launch.params.size(), sizeof params);
  std::memcpy(&params, launch.params.data(), sizeof params);
  EXPECT_EQ(params.outside_groups, 0.0f);
  EXPECT_EQ(params.factors.normalise, device::kNormaliseAtLeastEpsilon);
  EXPECT_EQ(params.factors.epsilon, 0.25f);
  EXPECT_EQ(params.factors.routed_scaling_factor, 2.5f);
}

/// Numbers of tokens, groups and factors compile nothing anew.
TEST(RouteLowering, SizesShareAKernel) {
  const auto key = [](std::string_view words) {
    return route_lowered("gfx942", core::concat("route num_experts=256 ", words)).launches()[0]->key;
  };
  EXPECT_EQ(key("tokens=1 top_k=5"), key("tokens=999 top_k=8 normalise=sum_plus_epsilon routed_scaling_factor=3"));
  EXPECT_EQ(key("tokens=1 top_k=8 n_group=8 topk_group=4"), key("tokens=1 top_k=8 n_group=4 topk_group=1"));
  EXPECT_NE(key("tokens=1 top_k=8"), key("tokens=1 top_k=8 score=identity"));
}

TEST(RouteLowering, NoTokensNoLaunch) {
  EXPECT_TRUE(route_lowered("sm_90a", "route tokens=0 num_experts=8 top_k=2").steps.empty());
}

TEST(RouteLowering, ExpertsBeyondTheRegistersAreRefused) {
  EXPECT_EQ(route_outcome("sm_90a", "route tokens=1 num_experts=1025 top_k=2").refusal,
            "num_experts must be <= 1024 (got 1025)");
}

}  // namespace
}  // namespace tilewise::backends::portable
