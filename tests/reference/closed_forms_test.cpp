// The reference's forward pass where the answer can be written down.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "../support/dense_call.hpp"

namespace tilewise::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kTolerance = 2e-7;  // one rounding to f32

TEST(ClosedForms, ZeroQueriesAverageTheValues) {
  DenseCall call({.seqlen_q = 2, .seqlen_k = 7, .dim = 3, .dim_v = 5});
  call.q.fill(0.0);
  call.forward();
  for (std::int64_t d = 0; d < 5; ++d) {
    double mean = 0.0;
    for (std::int64_t j = 0; j < 7; ++j) mean += call.v.get({0, j, 0, d}) / 7.0;
    EXPECT_NEAR(call.out.get({0, 1, 0, d}), mean, kTolerance);
  }
  EXPECT_NEAR(call.lse.get({0, 0, 1}), std::log(7.0), kTolerance);
}

TEST(ClosedForms, ZeroScaleIsUniformAndNegativeScaleFlipsTheSign) {
  DenseCall zero({.seqlen_k = 6});
  zero.options.softmax_scale = 0.0;
  zero.forward();
  EXPECT_NEAR(zero.lse.get({0, 0, 2}), std::log(6.0), kTolerance);

  DenseCall negative({.seqlen_k = 6}), flipped({.seqlen_k = 6});
  negative.options.softmax_scale = -0.75;
  negative.forward();
  flipped.options.softmax_scale = 0.75;
  flipped.q.fill_with([&](std::span<const std::int64_t> p) { return -negative.q.get({p[0], p[1], p[2], p[3]}); });
  flipped.forward();
  EXPECT_EQ(negative.out.values(), flipped.out.values());
  EXPECT_EQ(negative.lse.values(), flipped.lse.values());
}

TEST(ClosedForms, DefaultScaleIsOneOverRootHeadDim) {
  DenseCall call({.seqlen_q = 1, .seqlen_k = 1, .dim = 16});
  call.q.fill(1.0);
  call.k.fill(1.0);
  call.forward();
  EXPECT_NEAR(call.lse.get({0, 0, 0}), 16.0 / 4.0, kTolerance);
}

TEST(ClosedForms, TwoKeysAreALogisticFunction) {
  DenseCall call({.seqlen_q = 1, .seqlen_k = 2, .dim = 1, .dim_v = 1});
  call.options.softmax_scale = 1.0;
  call.q.fill(1.0);
  call.k.set({0, 0, 0, 0}, 0.25);
  call.k.set({0, 1, 0, 0}, 1.5);
  call.v.set({0, 0, 0, 0}, 0.0);
  call.v.set({0, 1, 0, 0}, 1.0);
  call.forward();
  EXPECT_NEAR(call.out.get({0, 0, 0, 0}), 1.0 / (1.0 + std::exp(-1.25)), kTolerance);
  EXPECT_NEAR(call.lse.get({0, 0, 0}), std::log(std::exp(0.25) + std::exp(1.5)), 4 * kTolerance);
}

TEST(ClosedForms, AnOverwhelmingScoreSelectsItsValue) {
  DenseCall call({.seqlen_q = 1, .seqlen_k = 9, .dim = 2, .dim_v = 4});
  call.options.softmax_scale = 1.0;
  call.q.fill(1000.0);  // scores to 1e6 and more: the maximum is subtracted first
  call.k.fill(-500.0);
  for (std::int64_t d = 0; d < 2; ++d) call.k.set({0, 6, 0, d}, 500.0);
  call.forward();
  for (std::int64_t d = 0; d < 4; ++d) EXPECT_EQ(call.out.get({0, 0, 0, d}), call.v.get({0, 6, 0, d}));
  EXPECT_EQ(call.lse.get({0, 0, 0}), 1e6);
}

TEST(ClosedForms, QueryHeadsReadTheirGroupsKeyHead) {
  DenseCall call({.seqlen_q = 1, .seqlen_k = 1, .heads_q = 6, .heads_k = 2});
  call.forward();
  for (std::int64_t h = 0; h < 6; ++h) EXPECT_EQ(call.out.get({0, 0, h, 1}), call.v.get({0, 0, h / 3, 1}));
}

TEST(ClosedForms, ASinkTakesPartOfTheDenominatorOnly) {
  DenseCall call({.seqlen_q = 1, .seqlen_k = 3, .dim_v = 1});
  call.q.fill(0.0);
  call.v.fill(1.0);
  call.sink = Tensor(DType::f32, {1});
  call.sink.fill(std::log(5.0));
  call.forward();
  EXPECT_NEAR(call.out.get({0, 0, 0, 0}), 3.0 / 8.0, kTolerance);
  EXPECT_NEAR(call.lse.get({0, 0, 0}), std::log(8.0), 2 * kTolerance);
}

TEST(ClosedForms, RowsThatSeeNothing) {
  DenseCall call({.seqlen_q = 3, .seqlen_k = 2});
  call.options.mask = Mask::causal;  // bottom-right: the first query stands before the first key
  call.forward();
  EXPECT_EQ(call.lse.get({0, 0, 0}), -kInfinity);
  for (std::int64_t d = 0; d < 4; ++d) EXPECT_EQ(call.out.get({0, 0, 0, d}), 0.0);
  EXPECT_TRUE(std::isfinite(call.lse.get({0, 0, 1})));

  call.sink = Tensor(DType::f32, {1});
  call.sink.fill(-1.5);
  call.forward();
  EXPECT_EQ(call.lse.get({0, 0, 0}), -1.5);
  for (std::int64_t d = 0; d < 4; ++d) EXPECT_EQ(call.out.get({0, 0, 0, d}), 0.0);

  DenseCall empty({.seqlen_q = 2, .seqlen_k = 0});
  empty.forward();
  EXPECT_EQ(empty.lse.get({0, 0, 1}), -kInfinity);
  EXPECT_EQ(empty.out.get({0, 1, 0, 3}), 0.0);
}

TEST(ClosedForms, AWindowOfOneCopiesTheValueOnTheDiagonal) {
  DenseCall call({.seqlen_q = 3, .seqlen_k = 5});
  call.options.window_left = call.options.window_right = 0;
  call.forward();
  for (std::int64_t i = 0; i < 3; ++i) EXPECT_EQ(call.out.get({0, i, 0, 2}), call.v.get({0, i + 2, 0, 2}));
  call.options.alignment = Alignment::top_left;
  call.forward();
  for (std::int64_t i = 0; i < 3; ++i) EXPECT_EQ(call.out.get({0, i, 0, 2}), call.v.get({0, i, 0, 2}));
}

TEST(ClosedForms, SoftcapLimits) {
  // Far above the cap every score is the cap: the weights are uniform and lse is cap + log(n).
  DenseCall call({.seqlen_q = 1, .seqlen_k = 4});
  call.q.fill(100.0);
  call.k.fill_with([](std::span<const std::int64_t> p) { return 1.0 + static_cast<double>(p[1]); });
  call.options.softcap = 2.0;
  call.forward();
  EXPECT_NEAR(call.lse.get({0, 0, 0}), 2.0 + std::log(4.0), 2 * kTolerance);
  // Far below it the cap changes nothing to first order.
  DenseCall plain({.seqlen_k = 6}, 5), capped({.seqlen_k = 6}, 5);
  plain.forward();
  capped.options.softcap = 1e4;
  capped.forward();
  for (std::int64_t i = 0; i < plain.out.size(); ++i) EXPECT_NEAR(plain.out.at(i), capped.out.at(i), 1e-5);
}

TEST(ClosedForms, AlibiFallsWithTheDistanceFromTheDiagonal) {
  DenseCall call({.seqlen_q = 2, .seqlen_k = 4, .heads_q = 2, .heads_k = 1});
  call.q.fill(0.0);
  call.alibi_slopes = Tensor(DType::f32, {2});
  call.alibi_slopes.set({0}, 0.5);
  call.alibi_slopes.set({1}, -0.25);
  call.forward();
  const double slopes[2] = {0.5, -0.25};
  for (std::int64_t h = 0; h < 2; ++h) {
    for (std::int64_t i = 0; i < 2; ++i) {
      double sum = 0.0;
      for (std::int64_t j = 0; j < 4; ++j) sum += std::exp(-slopes[h] * static_cast<double>(std::llabs(i + 2 - j)));
      EXPECT_NEAR(call.lse.get({0, h, i}), std::log(sum), 2 * kTolerance) << "head " << h << ", row " << i;
    }
  }
}

TEST(ClosedForms, BiasIsAddedAfterSoftcap) {
  DenseCall call({.seqlen_q = 1, .seqlen_k = 2, .dim_v = 1});
  call.q.fill(0.0);
  call.options.softcap = 0.1;
  call.bias = Tensor(DType::f32, {1, 1, 1, 2});
  call.bias.set({0, 0, 0, 1}, 3.0);
  call.bias.set({0, 0, 0, 0}, 0.0);
  call.forward();
  EXPECT_NEAR(call.lse.get({0, 0, 0}), std::log(1.0 + std::exp(3.0)), 2 * kTolerance);
}

TEST(ClosedForms, MinusInfinityAndFalseHide) {
  for (const DType dtype : {DType::f32, DType::boolean}) {
    DenseCall call({.seqlen_q = 2, .seqlen_k = 3});
    const bool boolean = dtype == DType::boolean;
    call.bias = Tensor(dtype, {1, 1, 2, 3});
    call.bias.fill(boolean ? 0.0 : -kInfinity);
    call.bias.set({0, 0, 0, 1}, boolean ? 1.0 : 0.0);
    call.v.set({0, 2, 0, 0}, std::numeric_limits<double>::quiet_NaN());
    call.forward();
    EXPECT_EQ(call.out.get({0, 0, 0, 0}), call.v.get({0, 1, 0, 0}));
    EXPECT_EQ(call.out.get({0, 1, 0, 0}), 0.0);
    EXPECT_EQ(call.lse.get({0, 0, 1}), -kInfinity);
  }
}

TEST(ClosedForms, NarrowTypesRoundTheSameResult) {
  DenseCall wide({.seqlen_k = 33, .dim = 24, .dim_v = 8}, 9);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    DenseCall narrow({.seqlen_k = 33, .dim = 24, .dim_v = 8, .dtype = dtype}, 9);
    // The same values on both sides: those the narrow type holds.
    for (std::int64_t i = 0; i < wide.q.size(); ++i) wide.q.set_at(i, narrow.q.at(i));
    for (std::int64_t i = 0; i < wide.k.size(); ++i) wide.k.set_at(i, narrow.k.at(i));
    for (std::int64_t i = 0; i < wide.v.size(); ++i) wide.v.set_at(i, narrow.v.at(i));
    wide.forward();
    narrow.forward();
    EXPECT_EQ(wide.lse.values(), narrow.lse.values());
    Tensor rounded(dtype, {1, 4, 1, 8});
    for (std::int64_t i = 0; i < wide.out.size(); ++i) rounded.set_at(i, wide.out.at(i));
    EXPECT_EQ(narrow.out.values(), rounded.values());
  }
}

TEST(ClosedForms, PartialResultsMergeByTheirLse) {
  const Sizes sizes{.batch = 2, .seqlen_q = 5, .seqlen_k = 12, .heads_q = 4, .heads_k = 2, .dim = 8, .dim_v = 6};
  DenseCall whole(sizes, 3);
  whole.sink = whole.normal(DType::f32, {4});
  whole.forward();

  std::vector<DenseCall> parts;
  std::vector<TensorView> outs, lses;
  for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>{0, 5}, {5, 1}, {6, 6}}) {
    Sizes part = sizes;
    part.seqlen_k = count;
    DenseCall& call = parts.emplace_back(part);
    call.q = whole.q;
    const auto slice = [first = first](const Tensor& from) {
      return [&from, first](std::span<const std::int64_t> p) { return from.get({p[0], first + p[1], p[2], p[3]}); };
    };
    call.k.fill_with(slice(whole.k));
    call.v.fill_with(slice(whole.v));
    call.forward();
    outs.push_back(call.out.view());
    lses.push_back(call.lse.view());
  }
  DenseCall merged(sizes);
  tilewise::merge(outs, lses, whole.sink.view(), merged.out.view(), merged.lse.view());
  for (std::int64_t i = 0; i < whole.out.size(); ++i) EXPECT_NEAR(merged.out.at(i), whole.out.at(i), 1e-6);
  for (std::int64_t i = 0; i < whole.lse.size(); ++i) EXPECT_NEAR(merged.lse.at(i), whole.lse.at(i), 1e-6);
}

}  // namespace
}  // namespace tilewise::test
