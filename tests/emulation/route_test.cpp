// Route's portable kernels under emulation against the reference: numbers of experts around a wave's lanes, groups of
// every size, more choices than lanes, hostile ids, and special values.
#include <gtest/gtest.h>

#include <string>

#include "../support/emulated_machines.hpp"
#include "../support/expect_passed.hpp"
#include "tilewise/route.hpp"

namespace tilewise::test {
namespace {

class EmulatedRoute : public testing::TestWithParam<std::string> {
 protected:
  /// Seeds differ in strides and ties, and one in four in special values, one in five in large ones.
  static void check(const std::string& problem, std::uint64_t seeds) {
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      expect_passed(parse_problem(problem), GetParam(), seed);
    }
  }
};

TEST_P(EmulatedRoute, ExpertsAroundTheLanes) {
  for (const char* experts : {"1", "31", "64", "65"})
    check("route tokens=9 top_k=1 dtype=bf16 bias=f32 num_experts=" + std::string(experts), 6);
}

TEST_P(EmulatedRoute, DeepSeeksRouter) {
  check(
      "route tokens=6 num_experts=256 top_k=8 score=sigmoid bias=f32 n_group=8 topk_group=4 group_value=sum_of_two "
      "normalise=sum_plus_epsilon epsilon=1e-20 routed_scaling_factor=2.5",
      10);
}

TEST_P(EmulatedRoute, GroupsOfEverySize) {
  const std::string problem = "route tokens=5 num_experts=96 top_k=2 score=sqrt_softplus outside_groups=zero ";
  for (const char* groups : {"n_group=96 topk_group=70", "n_group=48 topk_group=5 group_value=sum_of_two",
                             "n_group=2 topk_group=1 group_value=sum_of_two"})
    check(problem + groups, 6);
}

TEST_P(EmulatedRoute, MoreChoicesThanLanes) {
  const std::string sizes = " tokens=5 num_experts=130 top_k=70 dtype=f16";
  check("route ids_dtype=i64 weigh=softmax_of_chosen scale_of_expert=bf16" + sizes, 6);
  check("route_backward ids_dtype=i64 weigh=softmax_of_chosen scale_of_expert=bf16" + sizes, 8);
}

TEST_P(EmulatedRoute, EveryWayOfWeighing) {
  for (const char* way : {" score=identity normalise=sum_plus_epsilon epsilon=0.25", " weigh=sigmoid_of_chosen",
                          " score=sqrt_softplus normalise=at_least_epsilon epsilon=1e-9", " score=sigmoid",
                          " normalise=sum_plus_epsilon"}) {
    const std::string sizes = " tokens=7 num_experts=40 top_k=5 weights_dtype=bf16 routed_scaling_factor=2.5";
    check("route" + sizes + way + " chosen_by=logits", 5);
    check("route_backward" + sizes + way, 10);
  }
}

TEST_P(EmulatedRoute, WithoutTokens) {
  check("route tokens=0 num_experts=8 top_k=2", 1);
  check("route_backward tokens=0 num_experts=8 top_k=2", 1);
}

TEST_P(EmulatedRoute, IsNeverChosenUnaskedAndRefusesF64) {
  for (const ExplainRow& row : explain(parse_problem("route tokens=1 num_experts=8 top_k=2")).rows) {
    if (row.implementation != GetParam()) continue;
    EXPECT_TRUE(row.accepted && !row.chosen) << row.reason;
  }
  for (const ExplainRow& row : explain(parse_problem("route bias=f64 tokens=1 num_experts=8 top_k=2")).rows) {
    if (row.implementation != GetParam()) continue;
    EXPECT_EQ(row.reason, "does not support f64");
  }
}

TILEWISE_ON_MACHINES(EmulatedRoute, "emulation.sm80");
TILEWISE_ON_MACHINES_BY_NIGHT(EmulatedRoute, "emulation.cdna", "emulation.rdna");

}  // namespace
}  // namespace tilewise::test
