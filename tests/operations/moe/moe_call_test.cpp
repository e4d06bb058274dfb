// What calls of experts describe to, every wrong tensor by name, plans that are given and those that are remembered.
#include <cstring>
#include <utility>

#include "moe_support.hpp"

namespace tilewise {
namespace {

using test::expect_error, test::expect_invalid, test::SmallMoe;

TEST(MoeCall, DescribesToItsProblem) {
  SmallMoe call;
  EXPECT_EQ(to_string(describe(call.forward)),
            "moe tokens=5 hidden=6 intermediate=3 num_experts=4 top_k=2 gate_up_bias=f32 down_bias=f32");
  EXPECT_EQ(to_string(describe(call.backward)),
            "moe_backward tokens=5 hidden=6 intermediate=3 num_experts=4 top_k=2 gate_up_bias=f32 down_bias=f32 "
            "dgate_up_bias=1 ddown_bias=1");
  SmallMoe other(DType::bf16, MoeGate::none);
  other.forward.gate_up_bias = {};
  other.forward.topk_ids = other.tensor({5, 2}, DType::i64);
  other.forward.first_expert = 8;
  other.forward.activation = Activation::relu_squared;
  other.forward.clamp = MoeClamp::after;
  other.forward.limit = 2.5;
  other.forward.weight_on_input = true;
  EXPECT_EQ(to_string(describe(other.forward)),
            "moe dtype=bf16 ids_dtype=i64 tokens=5 hidden=6 intermediate=3 num_experts=4 top_k=2 first_expert=8 "
            "gate=none activation=relu_squared clamp=after limit=2.5 down_bias=bf16 weight_on_input=1");
}

/// Weights [experts, in, out] as some checkpoints have them come as a transposed view.
TEST(MoeCall, TakesWeightsEitherWay) {
  SmallMoe call;
  const auto transposed = [&](const TensorView& view) {
    TensorView other = call.tensor({view.shape[0], view.shape[2], view.shape[1]}, view.dtype);
    std::swap(other.shape[1], other.shape[2]);
    std::swap(other.strides[1], other.strides[2]);
    for (std::int64_t e = 0; e < view.shape[0]; ++e)
      for (std::int64_t r = 0; r < view.shape[1]; ++r)
        for (std::int64_t c = 0; c < view.shape[2]; ++c)
          test::set_element(other, e * other.strides[0] + r * other.strides[1] + c * other.strides[2],
                            test::element(view, e * view.strides[0] + r * view.strides[1] + c * view.strides[2]));
    return other;
  };
  for (const std::string& name : test::rows_for(describe(call.forward))) {
    moe(call.forward, {name});
    MoeArguments other = call.forward;
    other.gate_up = transposed(other.gate_up);
    other.down = transposed(other.down);
    other.out = call.tensor({5, 6}, DType::f32);
    EXPECT_TRUE(describe(other).gate_up_transposed && describe(other).down_transposed);
    moe(other, {name});
    for (std::int64_t i = 0; i < 30; ++i)
      EXPECT_NEAR(test::element(other.out, i), test::element(call.forward.out, i), 1e-5) << name;
  }
}

template <typename Change>
void refused(const std::string& sentence, const Change& change) {
  SmallMoe call;
  change(call, call.forward);
  expect_invalid(sentence, [&] { (void)describe(call.forward); });
}

TEST(MoeCall, NamesTheTensorThatDoesNotFit) {
  refused("x: must be given", [](auto&, auto& f) { f.x = {}; });
  refused("topk_ids: must be given", [](auto&, auto& f) { f.topk_ids = {}; });
  refused("down: must be given", [](auto&, auto& f) { f.down = {}; });
  refused("topk_weights: shape must be [tokens, top_k] = [5, 2] (got [5, 3])",
          [](auto& c, auto& f) { f.topk_weights = c.tensor({5, 3}, DType::f32); });
  refused("topk_ids: rank must be 2, [tokens, top_k] (got 1, shape [5])",
          [](auto& c, auto& f) { f.topk_ids = c.tensor({5}, DType::i32); });
  refused("gate_up: shape must be [num_experts, 2 * intermediate, hidden] = [4, 6, 6] (got [4, 3, 6])",
          [](auto& c, auto& f) { f.gate_up = c.tensor({4, 3, 6}, DType::f32); });
  refused("gate_up: shape must be [num_experts, intermediate, hidden] = [4, 3, 6] (got [4, 6, 6])",
          [](auto&, auto& f) { f.gate = MoeGate::none; });
  refused("down: shape must be [num_experts, hidden, intermediate] = [4, 6, 3] (got [4, 7, 3])",
          [](auto& c, auto& f) { f.down = c.tensor({4, 7, 3}, DType::f32); });
}

TEST(MoeCall, NamesOutputsThatCantBeWritten) {
  refused("out: must not overlap x in memory (got f32[5, 6] that starts 0 bytes from f32[5, 6])",
          [](auto&, auto& f) { f.out.data = f.x.data; });
  refused("out: an output must not be broadcast (got stride 0 in dimension 0 of size 5)",
          [](auto&, auto& f) { f.out.strides[0] = 0; });
  SmallMoe call;
  call.backward.ddown.data = call.backward.down.data;
  expect_invalid("ddown: must not overlap down in memory (got f32[4, 6, 3] that starts 0 bytes from f32[4, 6, 3])",
                 [&] { (void)describe(call.backward); });
}

TEST(MoeCall, WantsTheScalesOfAFormat) {
  SmallMoe call(DType::bf16);
  MoeArguments f = call.forward;
  f.w_format = parse_block_format("mxfp4");
  f.gate_up = call.tensor({4, 6, 6}, DType::fp4_e2m1);
  f.down = call.tensor({4, 6, 4}, DType::fp4_e2m1);
  f.gate_up = call.tensor({4, 8, 6}, DType::fp4_e2m1);
  f.gate_up_bias = {};
  expect_invalid("gate_up_scale: must be given with w_format=mxfp4 (got none)", [&] { (void)describe(f); });
  f.gate_up_scale = call.tensor({4, 8, 1}, DType::fp8_e8m0);
  expect_invalid("down_scale: must be given with w_format=mxfp4 (got none)", [&] { (void)describe(f); });
  f.down_scale = call.tensor({4, 6, 1}, DType::fp8_e8m0);
  EXPECT_EQ(to_string(describe(f)),
            "moe w_format=mxfp4 dtype=bf16 tokens=5 hidden=6 intermediate=4 num_experts=4 top_k=2 down_bias=bf16");
  f.down_global_scale = call.tensor({4}, DType::f32);
  expect_invalid("down_global_scale: excludes w_format=mxfp4 (got both)", [&] { (void)describe(f); });
  f.w_format = {};
  expect_error(ErrorCode::invalid_type, "down: dtype must be bf16 (got fp4_e2m1)", [&] { (void)describe(f); });
}

TEST(MoeCall, RunsPlans) {
  SmallMoe call;
  const Plan forward = plan(describe(call.forward)), backward = plan(describe(call.backward));
  run(forward, call.forward);
  run(backward, call.backward);
  expect_invalid("plan: must be for the tensors' problem, " + to_string(describe(call.backward)) + " (got a plan for " +
                     to_string(describe(call.forward)) + ")",
                 [&] { run(forward, call.backward); });
}

/// A remembered plan serves exactly the calls that describe to its problem.
TEST(MoeCall, WhatIsRememberedKnowsEveryTensorAndOption) {
  using Call = operations::Moe::Call;
  SmallMoe call;
  operations::Moe::LastCall last;
  ASSERT_TRUE(last.remember(Call(call.forward)));
  EXPECT_TRUE(last.is_like(Call(call.forward)));
  const auto expect_other = [&](auto&& change) {
    MoeArguments changed = call.forward;
    change(changed);
    EXPECT_FALSE(last.is_like(Call(changed)));
  };
  expect_other([](auto& f) { f.down_bias = {}; });
  expect_other([](auto& f) { f.x.strides[0] += 1; });
  expect_other([](auto& f) { f.topk_ids.dtype = DType::i64; });
  expect_other([](auto& f) { f.first_expert = 1; });
  expect_other([](auto& f) { f.gate = MoeGate::interleaved; });
  expect_other([](auto& f) { f.activation = Activation::gelu; });
  expect_other([](auto& f) { f.alpha = 1.0; });
  expect_other([](auto& f) { f.limit = 1.0; });
  expect_other([](auto& f) { f.weight_on_input = true; });
  expect_other([](auto& f) { f.batch_invariant = true; });
}

}  // namespace
}  // namespace tilewise
