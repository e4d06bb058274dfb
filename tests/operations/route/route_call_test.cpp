// What calls of route describe to, every wrong tensor by name, that each option has a part in the result, and hostile
// ids.
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "route_support.hpp"

namespace tilewise {
namespace {

using test::expect_error, test::expect_invalid, test::SmallRoute;

TEST(RouteCall, DescribesToItsProblem) {
  const SmallRoute call;
  EXPECT_EQ(to_string(describe(call.forward)), "route tokens=2 num_experts=6 top_k=3 scale_of_expert=bf16 bias=f32");
  EXPECT_EQ(to_string(describe(call.backward)), "route_backward tokens=2 num_experts=6 top_k=3 scale_of_expert=bf16");
  SmallRoute wide(DType::f64, DType::i64, DType::f64);
  wide.forward.bias = wide.forward.scale_of_expert = wide.backward.scale_of_expert = {};
  wide.forward.score = wide.backward.score = RouteScore::sigmoid;
  EXPECT_EQ(to_string(describe(wide.forward)),
            "route dtype=f64 ids_dtype=i64 weights_dtype=f64 tokens=2 num_experts=6 top_k=3 score=sigmoid");
  EXPECT_EQ(to_string(describe(wide.backward)),
            "route_backward dtype=f64 ids_dtype=i64 weights_dtype=f64 tokens=2 num_experts=6 top_k=3 score=sigmoid");
}

TEST(RouteCall, BadTensors) {
  const auto refused = [](const std::string& sentence, auto&& change) {
    SmallRoute call;
    change(call);
    expect_invalid(sentence, [&] { (void)describe(call.forward); });
  };
  refused("logits: must be given", [](auto& c) { c.forward.logits = {}; });
  refused("topk_weights: must be given", [](auto& c) { c.forward.topk_weights = {}; });
  refused("logits: rank must be 2, [tokens, num_experts] (got 1, shape [6])",
          [](auto& c) { c.forward.logits = c.tensor({6}, DType::f32); });
  refused("topk_weights: shape must be [tokens, top_k] = [2, 3] (got [2, 2])",
          [](auto& c) { c.forward.topk_weights = c.tensor({2, 2}, DType::f32); });
  refused("bias: shape must be [num_experts] = [6] (got [5])",
          [](auto& c) { c.forward.bias = c.tensor({5}, DType::f32); });
  refused("top_k: must be <= num_experts, 6 (got 7)", [](auto& c) {
    c.forward.topk_ids = c.tensor({2, 7}, DType::i32);
    c.forward.topk_weights = c.tensor({2, 7}, DType::f32);
  });
  refused("n_group: must divide num_experts, 6 (got 4)", [](auto& c) { c.forward.n_group = 4; });
  refused("topk_group: groups that stay must hold top_k experts, 3 (got 1, which hold 2)",
          [](auto& c) { c.forward.n_group = 3; });
  refused("topk_weights: an output must not be broadcast (got stride 0 in dimension 0 of size 2)",
          [](auto& c) { c.forward.topk_weights.strides[0] = 0; });
  refused("topk_weights: must not overlap logits in memory (got f32[2, 3] that starts 0 bytes from f32[2, 6])",
          [](auto& c) { c.forward.topk_weights.data = c.forward.logits.data; });
  refused("score: must be 0 to 3, one of softmax, sigmoid, sqrt_softplus, identity (got 9)",
          [](auto& c) { c.forward.score = static_cast<RouteScore>(9); });
}

TEST(RouteCall, WrongDtypes) {
  const auto refused = [](const std::string& sentence, auto&& change) {
    SmallRoute call;
    change(call);
    expect_error(ErrorCode::invalid_type, sentence, [&] {
      (void)describe(call.forward);
      (void)describe(call.backward);
    });
  };
  refused("logits: dtype must be f32, bf16, f16 or f64 (got i32)",
          [](auto& c) { c.forward.logits = c.tensor({2, 6}, DType::i32); });
  refused("topk_ids: dtype must be i32 or i64 (got f32)",
          [](auto& c) { c.forward.topk_ids = c.tensor({2, 3}, DType::f32); });
  refused("topk_weights: dtype must be f32, bf16 or f16 (got f64)",
          [](auto& c) { c.forward.topk_weights = c.tensor({2, 3}, DType::f64); });
  refused("dlogits: dtype must be f32 (got bf16)", [](auto& c) { c.backward.dlogits = c.tensor({2, 6}, DType::bf16); });
  refused("bias: must be on cpu, where logits is (got cuda:0)",
          [](auto& c) { c.forward.bias.device = {DeviceType::cuda, 0}; });
}

/// The backward pass reads topk_ids, which may so be broadcast; it must not overlap what is written.
TEST(RouteCall, IdsAreReadByTheBackwardPass) {
  SmallRoute call;
  call.backward.topk_ids.strides[0] = 0;
  EXPECT_NO_THROW((void)describe(call.backward));
  call.backward.topk_ids = {call.backward.dlogits.data, DType::i32, {2, 3}};
  expect_invalid("dlogits: must not overlap topk_ids in memory (got f32[2, 6] that starts 0 bytes from i32[2, 3])",
                 [&] { (void)describe(call.backward); });
}

using Change = std::function<void(RouteArguments&, RouteBackwardArguments&)>;

/// An option that a kernel did not know would leave its results as they were.
TEST(RouteCall, EveryOptionHasAPartInTheResult) {
  const std::vector<std::pair<std::string, Change>> changes{
      {"score", [](auto& f, auto& b) { f.score = b.score = RouteScore::sigmoid; }},
      {"weigh", [](auto& f, auto& b) { f.weigh = b.weigh = RouteWeigh::softmax_of_chosen; }},
      {"normalise", [](auto& f, auto& b) { f.normalise = b.normalise = RouteNormalise::sum_plus_epsilon; }},
      {"epsilon",
       [](auto& f, auto& b) {
         f.normalise = b.normalise = RouteNormalise::at_least_epsilon;
         f.epsilon = b.epsilon = 3.0;
       }},
      {"routed_scaling_factor", [](auto& f, auto& b) { f.routed_scaling_factor = b.routed_scaling_factor = 2.0; }},
      {"scale_of_expert", [](auto& f, auto& b) { f.scale_of_expert = b.scale_of_expert = {}; }},
      {"chosen_by", [](auto& f, auto&) { f.chosen_by = RouteChosenBy::logits; }},
      {"bias", [](auto& f, auto&) { f.bias = {}; }},
      {"n_group", [](auto& f, auto&) { f.n_group = 2; }},
  };
  for (const char* row : {"reference", "cpu.generic"}) {
    const auto results = [row](const Change& change) {
      SmallRoute call;
      change(call.forward, call.backward);
      route(call.forward, {row});
      route_backward(call.backward, {row});
      std::vector<double> all = SmallRoute::numbers(call.forward.topk_weights);
      for (const std::int64_t id : SmallRoute::ids(call.forward.topk_ids)) all.push_back(static_cast<double>(id));
      for (const double gradient : SmallRoute::numbers(call.backward.dlogits)) all.push_back(gradient);
      return all;
    };
    const auto plain = results([](auto&, auto&) {});
    for (const auto& [name, change] : changes) EXPECT_NE(results(change), plain) << name << " of " << row;
    const auto grouped = [](RouteArguments& f, double sign) {
      SmallRoute::set(f.logits, {5 * sign, 0, 3 * sign, 3 * sign, 4 * sign, sign});
      f.bias = {}, f.chosen_by = RouteChosenBy::logits, f.n_group = 3, f.topk_group = 2;
    };
    const Change greatest = [&](auto& f, auto&) { grouped(f, 1); };
    const Change summed = [&](auto& f, auto&) { grouped(f, 1), f.group_value = RouteGroupValue::sum_of_two; };
    const Change hidden = [&](auto& f, auto&) { grouped(f, -1); };
    const Change zero = [&](auto& f, auto&) { grouped(f, -1), f.outside_groups = RouteOutsideGroups::zero; };
    EXPECT_NE(results(summed), results(greatest)) << row;
    EXPECT_NE(results(zero), results(hidden)) << row;
  }
}

TEST(RouteCall, IdsThatAreNoExpertsCountForNothing) {
  for (const DType ids : {DType::i32, DType::i64}) {
    for (const char* row : {"reference", "cpu.generic"}) {
      SmallRoute call(DType::f32, ids);
      call.backward.normalise = RouteNormalise::sum_plus_epsilon;
      const std::int64_t far = ids == DType::i64 ? std::int64_t{1} << 40 : 0x7FFFFFFF;
      call.set_ids({-1, 2, 6, far, -far, 6});
      route_backward(call.backward, {row});
      const std::vector<double> gradients = SmallRoute::numbers(call.backward.dlogits);
      for (std::size_t e = 0; e < 12; ++e) EXPECT_NEAR(gradients[e], 0.0, 1e-6) << e;  // one weight is 1 whatever it is
      call.backward.normalise = RouteNormalise::no;
      route_backward(call.backward, {row});
      EXPECT_NE(SmallRoute::numbers(call.backward.dlogits)[2], 0.0);
    }
  }
}

TEST(RouteCall, NoTokens) {
  RouteArguments arguments;
  arguments.logits = {nullptr, DType::f32, {0, 8}};
  arguments.topk_ids = {nullptr, DType::i32, {0, 2}};
  arguments.topk_weights = {nullptr, DType::f32, {0, 2}};
  EXPECT_NO_THROW(route(arguments));
}

TEST(RouteCall, RunsPlans) {
  SmallRoute call, other(DType::bf16);
  const Plan forward = plan(describe(call.forward)), backward = plan(describe(call.backward));
  run(forward, call.forward);
  run(backward, call.backward);
  expect_invalid("plan: must be for the tensors' problem, " + to_string(describe(other.forward)) + " (got a plan for " +
                     to_string(describe(call.forward)) + ")",
                 [&] { run(forward, other.forward); });
}

}  // namespace
}  // namespace tilewise
