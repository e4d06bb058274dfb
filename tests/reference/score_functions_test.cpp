// score_mod and mask_mod: what says the same as an option gives the same, and gradients are those of differences.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>

#include "../support/dense_call.hpp"
#include "../support/expect_error.hpp"
#include "tilewise/plan.hpp"

namespace tilewise::test {
namespace {

constexpr Sizes kSquare{.batch = 2, .seqlen_q = 7, .seqlen_k = 7, .heads_q = 4, .heads_k = 2, .dim = 8, .dim_v = 5};

/// Both passes of a call of which two ways say the same.
void expect_same(DType dtype, const std::function<void(DenseCall&)>& by_option,
                 const std::function<void(DenseCall&)>& by_function, double tolerance = 0.0) {
  Sizes sizes = kSquare;
  sizes.dtype = dtype;
  DenseCall option(sizes), function(sizes);
  by_option(option);
  by_function(function);
  for (DenseCall* call : {&option, &function}) {
    call->prepare_backward(true);
    call->forward();
    call->backward();
  }
  EXPECT_LE(largest_difference(function.out, option.out), tolerance);
  for (std::int64_t i = 0; i < option.lse.size(); ++i) {
    if (option.lse.at(i) == function.lse.at(i)) continue;  // -inf too
    EXPECT_NEAR(function.lse.at(i), option.lse.at(i), tolerance);
  }
  EXPECT_LE(largest_difference(function.dq, option.dq), tolerance);
  EXPECT_LE(largest_difference(function.dk, option.dk), tolerance);
  EXPECT_LE(largest_difference(function.dv, option.dv), tolerance);
}

Tensor slopes_of(DType dtype) {
  Tensor slopes(dtype, {4});
  slopes.fill_with([](std::span<const std::int64_t> at) { return 0.25 + 0.5 * static_cast<double>(at[0]); });
  return slopes;
}

TEST(ScoreFunctions, SayWhatOptionsSay) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    expect_same(
        dtype, [](DenseCall& c) { c.options.mask = Mask::causal; },
        [](DenseCall& c) { c.options.mask_mod = "q_idx >= kv_idx"; });
    expect_same(
        dtype, [](DenseCall& c) { c.options.mask = Mask::causal; },
        [](DenseCall& c) { c.options.score_mod = "select(q_idx >= kv_idx, score, -inf)"; });
    expect_same(
        dtype, [](DenseCall& c) { c.options.window_left = 2, c.options.window_right = 1; },
        [](DenseCall& c) { c.options.mask_mod = "(kv_idx >= q_idx - 2) & (kv_idx <= q_idx + 1)"; });
    expect_same(
        dtype, [](DenseCall& c) { c.options.softcap = 1.5; },
        [](DenseCall& c) { c.options.score_mod = "1.5 * tanh(score / 1.5)"; }, 1e-6);
    const Tensor slopes = slopes_of(dtype == DType::f64 ? DType::f64 : DType::f32);
    expect_same(
        dtype, [&](DenseCall& c) { c.alibi_slopes = slopes; },
        [&](DenseCall& c) {
          c.options.score_mod = "score - table0[h] * abs(q_idx - kv_idx)";
          c.options.tables = {slopes.view()};
        });
  }
}

TEST(ScoreFunctions, SayWhatABiasSays) {
  Tensor bias(DType::f32, {2, 4, 7, 7}), visible(DType::boolean, {2, 1, 7, 7});
  bias.fill_with([](std::span<const std::int64_t> at) {
    return std::sin(static_cast<double>(at[0] + 3 * at[1] + 5 * at[2] + 7 * at[3]));
  });
  visible.fill_with([](std::span<const std::int64_t> at) { return (at[0] + at[2] * at[3]) % 3 == 0 ? 1.0 : 0.0; });
  expect_same(
      DType::f32, [&](DenseCall& c) { c.bias = bias; },
      [&](DenseCall& c) {
        c.options.score_mod = "score + table0[b, h, q_idx, kv_idx]";
        c.options.tables = {bias.view()};
      });
  expect_same(
      DType::f32, [&](DenseCall& c) { c.bias = visible; },
      [&](DenseCall& c) {
        c.options.mask_mod = "table1[b, 0, q_idx, kv_idx]";
        c.options.score_mod = "score + 0.0 * table0[b, h, 0, 0]";
        c.options.tables = {bias.view(), visible.view()};
      });
}

TEST(ScoreFunctions, ComeAfterSoftcapAndBias) {
  DenseCall call({.seqlen_q = 1, .seqlen_k = 2, .dim = 4, .dim_v = 1});
  call.options.softmax_scale = 0.0;
  call.bias = Tensor(DType::f32, {1, 1, 1, 2});
  call.bias.set_at(0, 3.0);
  call.bias.set_at(1, 1.0);
  call.options.score_mod = "score * 0.5 + kv_idx";  // 1.5 and 1.5
  call.v.set_at(0, 2.0);
  call.v.set_at(1, 4.0);
  call.forward();
  EXPECT_FLOAT_EQ(static_cast<float>(call.out.at(0)), 3.0F);
  EXPECT_FLOAT_EQ(static_cast<float>(call.lse.at(0)), static_cast<float>(1.5 + std::log(2.0)));
}

TEST(ScoreFunctions, CountWithinTheUsedPart) {
  DenseCall call({.batch = 2, .seqlen_q = 4, .seqlen_k = 6, .heads_q = 2, .heads_k = 1});
  call.seqused_q = DenseCall::lengths({3, 4});
  call.seqused_k = DenseCall::lengths({3, 3});
  call.leftpad_k = DenseCall::lengths({1, 3});
  DenseCall other = call;
  call.options.mask = Mask::causal;
  call.options.alignment = Alignment::top_left;
  other.options.mask_mod = "q_idx >= kv_idx";
  call.forward();
  other.out = Tensor(DType::f32, {2, 4, 2, 4});
  other.forward();
  EXPECT_EQ(largest_difference(call.out, other.out), 0.0);
}

double loss(DenseCall& call) {
  call.forward();
  double sum = 0.0;
  for (std::int64_t i = 0; i < call.out.size(); ++i) sum += call.dout.at(i) * call.out.at(i);
  for (std::int64_t i = 0; i < call.lse.size(); ++i)
    if (std::isfinite(call.lse.at(i))) sum += call.dlse.at(i) * call.lse.at(i);
  return sum;
}

TEST(ScoreFunctions, HaveTheGradientsOfDifferences) {
  constexpr double kStep = 1e-5;
  for (const char* score_mod :
       {"score * score * 0.3 - h", "2 * tanh(score / 2) * (1 + 0.1 * kv_idx)", "exp2(score * 0.5) + table0[h, q_idx]",
        "score / (1 + abs(score))", "log(1 + exp(score)) * select(q_idx > 1, 1, -2)"}) {
    DenseCall call({.batch = 1, .seqlen_q = 3, .seqlen_k = 5, .heads_q = 2, .heads_k = 1, .dtype = DType::f64});
    const Tensor table = call.normal(DType::f32, {2, 3});
    call.options.softcap = 3.0;
    call.options.score_mod = score_mod;
    call.options.mask_mod = "(kv_idx != 3) | (h == 0)";
    call.options.tables = {table.view()};
    call.bias = call.normal(DType::f64, {1, 2, 1, 5});
    call.prepare_backward(true);
    call.forward();
    call.backward();
    for (const auto& [input, gradient] :
         {std::pair(call.q, call.dq), std::pair(call.k, call.dk), std::pair(call.bias, call.dbias)}) {
      Tensor changed = input;  // the call's own memory
      for (std::int64_t i = 0; i < changed.size(); ++i) {
        const double kept = changed.at(i);
        changed.set_at(i, kept + kStep);
        const double high = loss(call);
        changed.set_at(i, kept - kStep);
        const double low = loss(call);
        changed.set_at(i, kept);
        EXPECT_NEAR(gradient.at(i), (high - low) / (2 * kStep), 1e-6) << score_mod << ", element " << i;
      }
    }
  }
}

/// Elements that several scores look up, look-ups within the slope of others, and those that are outside.
TEST(ScoreFunctions, GiveTablesTheGradientsOfDifferences) {
  constexpr double kStep = 1e-5;
  for (const char* score_mod :
       {"score + table0[h, clamp(q_idx - kv_idx + 1, 0, 2)]", "score * table0[h, 1] + table1[kv_idx] * table1[q_idx]",
        "select(table1[kv_idx] > 0, score * exp2(table0[h, q_idx]), tanh(score * table0[0, kv_idx]))",
        "score + table2[table2[h]] * 0.5 + max(table1[q_idx + 3], table0[h, 0])"}) {
    DenseCall call({.batch = 2, .seqlen_q = 3, .seqlen_k = 5, .heads_q = 2, .heads_k = 1, .dtype = DType::f64});
    Tensor tables[] = {call.normal(DType::f64, {2, 3}), call.normal(DType::f64, {5}), Tensor(DType::i32, {2})};
    call.options.softcap = 3.0;
    call.options.score_mod = score_mod;
    call.options.mask_mod = "(kv_idx != 3) | (h == 0)";
    call.options.tables = {tables[0].view(), tables[1].view(), tables[2].view()};
    call.prepare_backward(true);
    call.forward();
    const Tensor gradients[] = {Tensor(DType::f64, {2, 3}), Tensor(DType::f64, {5})};
    call.options.dtables = {gradients[0].view(), gradients[1].view()};
    call.backward();
    call.options.dtables.clear();
    for (std::size_t n = 0; n < std::size(gradients); ++n) {
      for (std::int64_t i = 0; i < gradients[n].size(); ++i) {
        const double kept = tables[n].at(i);
        tables[n].set_at(i, kept + kStep);
        const double high = loss(call);
        tables[n].set_at(i, kept - kStep);
        const double low = loss(call);
        tables[n].set_at(i, kept);
        EXPECT_NEAR(gradients[n].at(i), (high - low) / (2 * kStep), 1e-6)
            << score_mod << ", element " << i << " of table" << n;
      }
    }
  }
}

TEST(ScoreFunctions, RefuseGradientsThatAreNotThere) {
  const auto refused = [](const std::string& words, const std::string& message) {
    expect_invalid(
        message, [&] { validate(parse_problem("attention_backward seqlen_q=8 head_dim=16 num_heads_q=4 " + words)); });
  };
  refused("score_mod=score*table0[h] tables=f32[4] dtables=2", "dtables: must be bits of 1 tables (got 2)");
  refused("mask_mod=table0[h]<1 tables=f32[4] dtables=1", "dtables: requires score_mod (got none)");
  refused("score_mod=score*table0[select(score<0,1,0)] tables=f32[4] dtables=1",
          "dtable0: table0 must not be looked up by what depends on score");
  expect_error(ErrorCode::invalid_type, "dtable0: dtype of table0 must be f32, bf16, f16 or f64 (got i32)", [] {
    validate(
        parse_problem("attention_backward seqlen_q=8 head_dim=16 score_mod=score*table0[h] tables=i32[4] dtables=1"));
  });
  expect_invalid("dtables: belongs to attention_backward (got it in attention_forward)", [] {
    validate(
        parse_problem("attention_forward seqlen_q=8 head_dim=16 score_mod=score*table0[h] tables=f32[4] dtables=1"));
  });
}

TEST(ScoreFunctions, TellOfIndicesOutOfRangeWhereAsked) {
  DenseCall call(kSquare);
  const Tensor table = call.normal(DType::f32, {6});
  call.options.score_mod = "score + table0[q_idx]";
  call.options.tables = {table.view()};
  call.forward();  // an index out of range reads 0
  setenv("TILEWISE_CHECK", "1", 1);
  expect_invalid("table0: index 0 must be >= 0 and < 6 (got 6)", [&] { call.forward(); });
  call.options.score_mod = "score + table0[min(q_idx, 5)]";
  call.forward();
  unsetenv("TILEWISE_CHECK");
}

TEST(ScoreFunctions, AreRefusedByNameWhereTheyAreNotHonoured) {
  const Explanation explanation = explain(parse_problem(
      "attention_backward dtype=bf16 seqlen_q=8 num_heads_q=2 head_dim=64 score_mod=score*table0[h] tables=f32[2] "
      "dtables=1"));
  const auto hopper = std::ranges::find(explanation.rows, "emulation.sm90", &ExplainRow::implementation);
  ASSERT_NE(hopper, explanation.rows.end());
  EXPECT_NE(hopper->reason.find("dtables"), std::string::npos) << hopper->reason;
  for (const char* text : {"attention_forward seqlen_q=8 head_dim=16 score_mod=score*2",
                           "attention_backward seqlen_q=8 head_dim=16 mask_mod=h<1"}) {
    EXPECT_TRUE(plan(parse_problem(text)).implementation().starts_with("cpu.")) << text;
  }
}

}  // namespace
}  // namespace tilewise::test
