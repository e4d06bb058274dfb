// Route's problem: its text, every way a text can be wrong, the normal form, and what it asks of implementations.
#include "route_support.hpp"

namespace tilewise {
namespace {

using test::expect_error, test::expect_invalid;

RouteProblem problem_of(const std::string& text) { return parse_problem(text); }

TEST(RouteText, PrintsTheExampleOfTheInterface) {
  RouteProblem problem;
  problem.dtype = DType::bf16;
  problem.tokens = 512;
  problem.num_experts = 256;
  problem.top_k = 8;
  problem.score = RouteScore::sigmoid;
  problem.normalise = RouteNormalise::sum_plus_epsilon;
  problem.epsilon = 1e-20;
  problem.routed_scaling_factor = 2.5;
  problem.bias = DType::f32;
  problem.n_group = 8;
  problem.topk_group = 4;
  problem.group_value = RouteGroupValue::sum_of_two;
  const std::string text =
      "route dtype=bf16 tokens=512 num_experts=256 top_k=8 score=sigmoid normalise=sum_plus_epsilon epsilon=1e-20 "
      "routed_scaling_factor=2.5 bias=f32 n_group=8 topk_group=4 group_value=sum_of_two";
  EXPECT_EQ(to_string(problem), text);
  EXPECT_EQ(problem_of(text), problem);
}

TEST(RouteText, WhatMeansTheSameHasOneForm) {
  const auto form = [](const std::string& words) {
    return to_string(parse_problem("route tokens=1 num_experts=8 top_k=2" + words));
  };
  EXPECT_EQ(form(" n_group=4 group_value=sum_of_two outside_groups=zero"), "route tokens=1 num_experts=8 top_k=2");
  EXPECT_EQ(form(" n_group=8 topk_group=3 group_value=sum_of_two"),
            "route tokens=1 num_experts=8 top_k=2 n_group=8 topk_group=3");
  EXPECT_EQ(form(" score=sigmoid chosen_by=logits weigh=softmax_of_chosen"),
            "route tokens=1 num_experts=8 top_k=2 weigh=softmax_of_chosen chosen_by=logits");
  EXPECT_EQ(form(" score=sigmoid weigh=softmax_of_chosen"),
            "route tokens=1 num_experts=8 top_k=2 score=sigmoid weigh=softmax_of_chosen");
  EXPECT_EQ(to_string(parse_problem("route_backward tokens=1 num_experts=8 top_k=2 score=identity "
                                    "weigh=sigmoid_of_chosen")),
            "route_backward tokens=1 num_experts=8 top_k=2 weigh=sigmoid_of_chosen");
}

struct BadText {
  const char *words, *sentence;
};
class BadRouteText : public testing::TestWithParam<BadText> {};

TEST_P(BadRouteText, IsRefused) {
  expect_invalid(GetParam().sentence, [] { (void)parse_problem(GetParam().words); });
}

INSTANTIATE_TEST_SUITE_P(
    All, BadRouteText,
    testing::Values(
        BadText{"route tokens=1 num_experts=4", "top_k: must be given (got no such word)"},
        BadText{"route tokens=1 num_experts=4 top_k=5", "top_k: must be <= num_experts, 4 (got 5)"},
        BadText{"route tokens=1 num_experts=4 top_k=0", "topk_ids: top_k must be >= 1 (got 0)"},
        BadText{"route tokens=-1 num_experts=4 top_k=1", "logits: tokens must be >= 0 (got -1)"},
        BadText{"route tokens=1 num_experts=0 top_k=1", "logits: num_experts must be >= 1 (got 0)"},
        BadText{"route tokens=1 num_experts=9 top_k=1 n_group=2", "n_group: must divide num_experts, 9 (got 2)"},
        BadText{"route tokens=1 num_experts=9 top_k=1 n_group=0", "n_group: must divide num_experts, 9 (got 0)"},
        BadText{"route tokens=1 num_experts=8 top_k=1 n_group=2 topk_group=3",
                "topk_group: must be 1 to n_group, 2 (got 3)"},
        BadText{"route tokens=1 num_experts=8 top_k=5 n_group=4 topk_group=2",
                "topk_group: groups that stay must hold top_k experts, 5 (got 2, which hold 4)"},
        BadText{"route tokens=1 num_experts=4 top_k=1 epsilon=1e-20",
                "epsilon: requires normalise (got 1e-20 with normalise=no)"},
        BadText{"route tokens=1 num_experts=4 top_k=1 normalise=sum_plus_epsilon epsilon=-1",
                "epsilon: must be a number >= 0 that fp32 holds (got -1)"},
        BadText{"route tokens=1 num_experts=4 top_k=1 normalise=sum_plus_epsilon epsilon=nan",
                "epsilon: must be a number >= 0 that fp32 holds (got nan)"},
        BadText{"route tokens=1 num_experts=4 top_k=1 routed_scaling_factor=1e39",
                "routed_scaling_factor: must be a finite number that fp32 holds (got 1e+39)"},
        BadText{"route tokens=1 num_experts=4 top_k=1 score=relu",
                "score: must be one of softmax, sigmoid, sqrt_softplus, identity (got 'relu')"},
        BadText{"route tokens=1 num_experts=4 top_k=1 renormalise=no",
                "problem: unknown key; did you mean normalise? (got 'renormalise')"},
        BadText{"route_backward tokens=1 num_experts=4 top_k=1 bias=f32",
                "bias: belongs to route (got it in route_backward)"},
        BadText{"route_backward tokens=1 num_experts=4 top_k=1 n_group=2",
                "n_group: belongs to route (got it in route_backward)"},
        BadText{"route_backward tokens=1 num_experts=4 top_k=1 chosen_by=logits",
                "chosen_by: belongs to route (got it in route_backward)"}));

TEST(RouteText, OtherDtypesAreErrorsOfType) {
  const auto refused = [](const std::string& words, const std::string& sentence) {
    expect_error(ErrorCode::invalid_type, sentence,
                 [&] { (void)parse_problem("route tokens=1 num_experts=4 top_k=1 " + words); });
  };
  refused("dtype=i32", "logits: dtype must be f32, bf16, f16 or f64 (got i32)");
  refused("ids_dtype=f32", "topk_ids: dtype must be i32 or i64 (got f32)");
  refused("weights_dtype=f64", "topk_weights: dtype must be f32, bf16 or f16 (got f64)");
  refused("bias=u8", "bias: dtype must be f32, bf16, f16 or f64 (got u8)");
}

TEST(RouteFeatures, EachFieldAsksForItsOwn) {
  const auto asked = [](const std::string& words) {
    const RouteProblem problem = problem_of(words + " tokens=4 num_experts=8 top_k=2");
    return operations::route::to_string(operations::route::required_features(problem));
  };
  EXPECT_EQ(asked("route"), "forward, f32, softmax");
  EXPECT_EQ(asked("route_backward dtype=f16 ids_dtype=i64"), "backward, f16, i64_ids, softmax");
  EXPECT_EQ(asked("route dtype=bf16 weights_dtype=bf16 score=sigmoid bias=f16"),
            "forward, bf16, narrow_weights, sigmoid, bias");
  EXPECT_EQ(asked("route score=sqrt_softplus bias=f64"), "forward, f32, f64, sqrt_softplus, bias");
  EXPECT_EQ(asked("route score=identity chosen_by=logits"), "forward, f32, identity, by_logits");
  EXPECT_EQ(asked("route n_group=4 topk_group=2 group_value=sum_of_two outside_groups=zero"),
            "forward, f32, softmax, groups, sum_of_two, zero_outside");
  EXPECT_EQ(asked("route weigh=softmax_of_chosen normalise=at_least_epsilon"),
            "forward, f32, softmax, softmax_of_chosen, at_least_epsilon");
  EXPECT_EQ(asked("route_backward weigh=sigmoid_of_chosen normalise=sum_plus_epsilon"),
            "backward, f32, sigmoid_of_chosen, sum_plus_epsilon");
  EXPECT_EQ(asked("route routed_scaling_factor=2 scale_of_expert=bf16"),
            "forward, f32, softmax, routed_scaling_factor, scale_of_expert");
}

TEST(RouteExplain, ChoosesTheCpusRow) {
  const AnyProblem problem = parse_problem("route tokens=64 num_experts=8 top_k=2");
  EXPECT_EQ(plan(problem).implementation(), "cpu.generic");
  EXPECT_EQ(plan(problem, {"reference"}).implementation(), "reference");
}

}  // namespace
}  // namespace tilewise
