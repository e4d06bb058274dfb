// What calls of merge describe to, every wrong tensor by name, lists and stacked tensors, plans that are given and
// those that are remembered.
#include <cmath>
#include <cstring>
#include <utility>

#include "core/plan.hpp"
#include "merge_support.hpp"

namespace tilewise {
namespace {

using test::expect_error, test::expect_invalid, test::SmallMerge;

TEST(MergeCall, DescribesToItsProblem) {
  const SmallMerge call;
  EXPECT_EQ(to_string(describe(call.forward)),
            "merge parts=3 batch_size=2 seqlen_q=3 num_heads_q=4 head_dim_v=6 sink=f32");
  EXPECT_EQ(to_string(describe(call.backward)),
            "merge_backward parts=3 batch_size=2 seqlen_q=3 num_heads_q=4 head_dim_v=6 sink=f32 dlse=1 dsink=1");
  SmallMerge some(2, DType::bf16, DType::f32);
  some.forward.softmax_lse = {};
  some.backward.douts.clear();
  some.backward.dlse = {};
  EXPECT_EQ(to_string(describe(some.forward)),
            "merge dtype=bf16 parts_dtype=f32 batch_size=2 seqlen_q=3 num_heads_q=4 head_dim_v=6 sink=f32 "
            "softmax_lse=0");
  EXPECT_EQ(to_string(describe(some.backward)),
            "merge_backward dtype=bf16 parts_dtype=f32 batch_size=2 seqlen_q=3 num_heads_q=4 head_dim_v=6 sink=f32 "
            "douts=0 dsink=1");
  some.forward.outs[1] = some.tensor({2, 3, 4, 6}, DType::bf16);
  EXPECT_EQ(describe(some.forward).parts_dtype, PartsDType::mixed);
}

TEST(MergeCall, OneTensorWithADimensionMoreIsAllParts) {
  SmallMerge call = SmallMerge::stacked(5);
  EXPECT_EQ(to_string(describe(call.forward)),
            "merge parts=5 batch_size=2 seqlen_q=3 num_heads_q=4 head_dim_v=6 sink=f32 stacked=1");
  call.forward.lses = {call.tensor({4, 2, 4, 3}, DType::f32)};
  expect_invalid("lses: shape must be [parts, batch_size, num_heads_q, seqlen_q] = [5, 2, 4, 3] (got [4, 2, 4, 3])",
                 [&] { (void)describe(call.forward); });
  call.forward.outs = {call.tensor({0, 2, 3, 4, 6}, DType::f32)};
  expect_invalid("outs: must hold at least one partial result (got none)", [&] { (void)describe(call.forward); });
  call.forward.outs = {call.tensor({5, 2, 3, 4, 5}, DType::f32)};
  expect_invalid(
      "outs: shape must be [parts, batch_size, seqlen_q, num_heads_q, head_dim_v] = [5, 2, 3, 4, 6] (got [5, 2, 3, 4, "
      "5])",
      [&] { (void)describe(call.forward); });
  const SmallMerge one(1);
  EXPECT_FALSE(describe(one.forward).stacked);
}

/// A list and a stacked tensor of the same numbers give the same bits, whatever the layout's order of parts.
TEST(MergeCall, ListsAndStackedTensorsAgree) {
  for (const std::string& name : test::merge_rows()) {
    SmallMerge call = SmallMerge::stacked(7);
    auto* out = static_cast<float*>(call.forward.outs[0].data);
    auto* lse = static_cast<float*>(call.forward.lses[0].data);
    for (int i = 0; i < 7 * 144; ++i) out[i] = static_cast<float>((i * 37 % 101) - 50) / 25.0f;
    for (int i = 0; i < 7 * 24; ++i) lse[i] = static_cast<float>((i * 29 % 17) - 8) / 4.0f;
    MergeArguments list = call.forward;
    list.outs.clear(), list.lses.clear();
    for (int n = 0; n < 7; ++n) {
      list.outs.emplace_back(out + n * 144, DType::f32, std::initializer_list<std::int64_t>{2, 3, 4, 6});
      list.lses.emplace_back(lse + n * 24, DType::f32, std::initializer_list<std::int64_t>{2, 4, 3});
    }
    list.out = call.tensor({2, 3, 4, 6}, DType::f32);
    merge(call.forward, {name});
    merge(list, {name});
    EXPECT_EQ(std::memcmp(list.out.data, call.forward.out.data, 144 * sizeof(float)), 0) << name;
  }
}

TEST(MergeCall, BadTensorsOfTheBackwardPass) {
  const auto refused = [](const std::string& sentence, auto&& change) {
    SmallMerge call;
    change(call, call.backward);
    expect_invalid(sentence, [&] { (void)describe(call.backward); });
  };
  refused("dout: must be given", [](auto&, auto& b) { b.dout = {}; });
  refused("outs: must hold at least one partial result (got none)", [](auto&, auto& b) { b.outs.clear(); });
  refused("lses: must have as many entries as outs, 3 (got 2)", [](auto&, auto& b) { b.lses.pop_back(); });
  refused("douts: must have as many entries as outs, 3 (got 2)", [](auto&, auto& b) { b.douts.pop_back(); });
  refused("dlses: must have as many entries as outs, 3 (got 1)", [](auto&, auto& b) { b.dlses.resize(1); });
  refused("douts[1]: must be given", [](auto&, auto& b) { b.douts[1] = {}; });
  refused("dlse: shape must be [batch_size, num_heads_q, seqlen_q] = [2, 4, 3] (got [2, 3, 4])",
          [](auto& call, auto& b) { b.dlse = call.tensor({2, 3, 4}, DType::f32); });
  refused("douts[2]: shape must be [batch_size, seqlen_q, num_heads_q, head_dim_v] = [2, 3, 4, 6] (got [2, 3, 4, 5])",
          [](auto& call, auto& b) { b.douts[2] = call.tensor({2, 3, 4, 5}, DType::f32); });
  refused("dlses[0]: shape must be [batch_size, num_heads_q, seqlen_q] = [2, 4, 3] (got [2, 4])",
          [](auto& call, auto& b) { b.dlses[0] = call.tensor({2, 4}, DType::f32); });
  refused("dsink: shape must be [num_heads_q] = [4] (got [3])",
          [](auto& call, auto& b) { b.dsink = call.tensor({3}, DType::f32); });
  refused("douts[0]: an output must not be broadcast (got stride 0 in dimension 1 of size 3)",
          [](auto&, auto& b) { b.douts[0].strides[1] = 0; });
  refused("douts[1]: must not overlap outs[2] in memory (got f32[2, 3, 4, 6] that starts 0 bytes from f32[2, 3, 4, 6])",
          [](auto&, auto& b) { b.douts[1].data = b.outs[2].data; });
  refused(
      "douts[0]: must not overlap douts[1] in memory (got f32[2, 3, 4, 6] that starts 0 bytes from f32[2, 3, 4, 6])",
      [](auto&, auto& b) { b.douts[1].data = b.douts[0].data; });
}

TEST(MergeCall, WrongDtypesOfTheBackwardPass) {
  const auto refused = [](const std::string& sentence, auto&& change) {
    SmallMerge call(2, DType::bf16);
    change(call, call.backward);
    expect_error(ErrorCode::invalid_type, sentence, [&] { (void)describe(call.backward); });
  };
  refused("dout: dtype must be f32, bf16, f16 or f64 (got i64)",
          [](auto& call, auto& b) { b.dout = call.tensor({2, 3, 4, 6}, DType::i64); });
  refused("outs[1]: dtype must be f32 or that of dout, bf16 (got f16)",
          [](auto& call, auto& b) { b.outs[1] = call.tensor({2, 3, 4, 6}, DType::f16); });
  refused("douts[1]: dtype must be bf16 (got f32)",
          [](auto& call, auto& b) { b.douts[1] = call.tensor({2, 3, 4, 6}, DType::f32); });
  refused("dsink: dtype must be f32 (got bf16)", [](auto& call, auto& b) { b.dsink = call.tensor({4}, DType::bf16); });
  refused("dlses[0]: dtype must be f32 (got bf16)",
          [](auto& call, auto& b) { b.dlses[0] = call.tensor({2, 4, 3}, DType::bf16); });
}

TEST(MergeCall, PartsOfNoSuchDtypeAreNamedAndNotWhatWasMadeLikeThem) {
  SmallMerge call(2, DType::bf16);
  for (TensorView* view : {&call.forward.outs[0], &call.forward.outs[1], &call.forward.out}) view->dtype = DType::i32;
  expect_error(ErrorCode::invalid_type, "outs[0]: dtype must be f32, bf16, f16 or f64 (got i32)",
               [&] { (void)describe(call.forward); });
  for (TensorView* view : {&call.forward.outs[0], &call.forward.outs[1]}) view->dtype = DType::bf16;
  expect_error(ErrorCode::invalid_type, "out: dtype must be f32, bf16, f16 or f64 (got i32)",
               [&] { (void)describe(call.forward); });
}

/// More tensors than the framework has room for without memory of its own.
TEST(MergeCall, AnyNumberOfParts) {
  SmallMerge call(150);
  for (std::size_t n = 0; n < 150; ++n) static_cast<float*>(call.forward.outs[n].data)[0] = static_cast<float>(n);
  call.forward.sink = {};
  for (const std::string& name : test::merge_rows()) {
    merge(call.forward, {name});
    EXPECT_NEAR(static_cast<float*>(call.forward.out.data)[0], 74.5f, 1e-4f) << name;
    EXPECT_NEAR(static_cast<float*>(call.forward.softmax_lse.data)[0], std::log(150.0f), 1e-5f) << name;
  }
  merge_backward(call.backward);
  MergeArguments bad = call.forward;
  bad.out.data = bad.outs[97].data;
  expect_invalid(
      "out: must not overlap outs[97] in memory (got f32[2, 3, 4, 6] that starts 0 bytes from f32[2, 3, 4, 6])",
      [&] { merge(bad); });
  MergeBackwardArguments bad_gradient = call.backward;
  bad_gradient.dlses[149].data = bad_gradient.lses[3].data;
  expect_invalid(
      "dlses[149]: must not overlap lses[3] in memory (got f32[2, 4, 3] that starts 0 bytes from f32[2, 4, 3])",
      [&] { merge_backward(bad_gradient); });
}

TEST(MergeCall, RunsPlans) {
  SmallMerge call, other(4);
  const Plan forward = plan(describe(call.forward)), backward = plan(describe(call.backward));
  run(forward, call.forward);
  run(backward, call.backward);
  expect_invalid("plan: must be for the tensors' problem, " + to_string(describe(other.forward)) + " (got a plan for " +
                     to_string(describe(call.forward)) + ")",
                 [&] { run(forward, other.forward); });
  expect_invalid("plan: must be for the tensors' problem, " + to_string(describe(call.backward)) + " (got a plan for " +
                     to_string(describe(call.forward)) + ")",
                 [&] { run(forward, call.backward); });
}

/// A remembered plan serves exactly the calls that describe to its problem.
TEST(MergeCall, WhatIsRememberedKnowsEveryTensor) {
  using Call = operations::Merge::Call;
  SmallMerge call;
  operations::Merge::LastCall last;
  ASSERT_TRUE(last.remember(Call(call.backward)));
  EXPECT_TRUE(last.is_like(Call(call.backward)));
  SmallMerge again;
  EXPECT_TRUE(last.is_like(Call(again.backward)));
  const auto expect_other = [&](auto&& change) {
    MergeBackwardArguments changed = call.backward;
    change(changed);
    EXPECT_FALSE(last.is_like(Call(changed)));
  };
  expect_other([](auto& b) { b.layout = Layout::sbhd; });
  expect_other([](auto& b) { b.outs.pop_back(), b.lses.pop_back(); });
  expect_other([](auto& b) { b.douts.clear(); });
  expect_other([](auto& b) { b.dlses.clear(); });
  expect_other([](auto& b) { std::swap(b.douts, b.dlses); });
  expect_other([](auto& b) { b.sink = {}; });
  expect_other([](auto& b) { b.dsink = {}; });
  expect_other([](auto& b) { b.dlse = {}; });
  expect_other([](auto& b) { b.dout.strides[0] += 1; });
  expect_other([](auto& b) { b.outs[2].dtype = DType::bf16; });
  expect_other([](auto& b) { b.lses[1].strides[2] = 2; });
  expect_other([](auto& b) { b.dlses[1].shape[0] = 1; });
  MergeArguments forward = call.forward;
  operations::Merge::LastCall last_forward;
  ASSERT_TRUE(last_forward.remember(Call(forward)));
  forward.softmax_lse = {};
  EXPECT_FALSE(last_forward.is_like(Call(forward)));
}

}  // namespace
}  // namespace tilewise
