// What the checks make of large scores: which of them are exact, how far their weights may be off, and that the drawn
// ones are held to their weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "verify/call_tensors.hpp"
#include "verify/compare.hpp"
#include "verify/verify.hpp"
#include "verify/weight_errors.hpp"

namespace tilewise::verify {
namespace {

constexpr double kU = 0x1p-24;

TEST(WeightErrors, SmallIntegersSumExactly) {
  const std::vector<double> a{1.0, -2.0, 0.0, 2.0}, b{3.0, 1.0, 7.0, -1.0}, scaled{3e8, 1e8, 7e8, -1e8};
  EXPECT_TRUE(sums_exactly(a.data(), b.data(), 4, kU));
  EXPECT_TRUE(sums_exactly(a.data(), scaled.data(), 4, kU));
  const std::vector<double> fine{1.0 + 0x1p-23, 1.0, 1.0, 1.0};
  EXPECT_FALSE(sums_exactly(a.data(), fine.data(), 4, kU)) << "the sum has more bits than fp32";
  EXPECT_TRUE(sums_exactly(a.data(), fine.data(), 4, 0x1p-53));
  const std::vector<double> large{0x1p24, 0.5, 0.0, 0.0};
  EXPECT_FALSE(sums_exactly(a.data(), large.data(), 4, kU)) << "with -1 that is more than 2^24 ones";
}

TEST(WeightErrors, AScoreVanishesBesideALargeNumber) {
  EXPECT_TRUE(vanishes_beside(5.0, 1.0, -1e10, kU));
  EXPECT_FALSE(vanishes_beside(5.0, 1.0, -1e8, kU)) << "whose neighbours are 8 apart";
  EXPECT_FALSE(vanishes_beside(0.0, 0.0, 0.0, kU));
}

TEST(WeightErrors, ExactScoresHaveExactWeights) {
  WeightRange range(1e20);
  for (int n = 0; n < 4; ++n) range.add(1e20, 0.0);
  range.add(5.0, 1.0);
  EXPECT_FALSE(range.wide());
  EXPECT_EQ(range.error_of(0), 0.0);
  EXPECT_EQ(range.error_of(4), 0.0);
}

TEST(WeightErrors, ScoresThatMayBeOffByUnitsShareWhatTheyHave) {
  WeightRange near(1e9);
  near.add(1e9, 60.0);
  near.add(1e9 - 64.0, 60.0);
  EXPECT_TRUE(near.wide());
  EXPECT_NEAR(near.error_of(0), 1.0, 1e-9) << "either may be all";
  EXPECT_NEAR(near.error_of(1), 1.0, 1e-9);
  WeightRange far(1e9);
  far.add(1e9, 60.0);
  far.add(1e9 - 1e4, 60.0);
  EXPECT_LT(far.error_of(0), 1e-9) << "the winner weighs 1 whatever the errors";
}

TEST(LargeValues, AreDrawnForOneSeedInFive) {
  int large = 0;
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    large += draws_large_values(seed);
    EXPECT_FALSE(draws_large_values(seed) && draws_special_values(seed));
  }
  EXPECT_NEAR(large, 750, 100);
}

/// Biases, sinks and scores are large in many calls, and what they are held to is tight all the same.
TEST(LargeValues, AreHeldToTheirWeights) {
  const Problem problem = parse_problem(
      "attention_forward seqlen_q=12 seqlen_k=40 head_dim=16 head_dim_v=8 num_heads_q=2 bias=f32[1,1,q,k] sink=1");
  int masks = 0, sinks = 0, scores = 0, found = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const CallTensors call(problem, seed, Values::large);
    std::vector<Output> outputs = call.make_outputs(1);
    call.run(call.plan("reference", outputs), outputs);
    const std::vector<ErrorBounds> bounds = call.bounds(outputs, 0.0);
    const auto largest = [](const TensorView& view) {
      double value = 0.0;
      for_each_element(view, [&](auto, std::int64_t at) {
        if (std::isfinite(value_at(view, at))) value = std::max(value, std::abs(value_at(view, at)));
      });
      return value;
    };
    masks += largest(call.options.bias) >= 1e4;
    sinks += largest(call.options.sink) >= 1e4;
    scores += largest(call.forward_arguments(outputs).q) > 1e3;
    // What is off by a hundredth is found, but where two keys are too near each other to be told apart.
    std::vector<Output> off = call.make_outputs(1);
    call.run(call.plan("reference", off), off);
    const TensorView& view = off[0].buffer.view();
    for_each_element(view, [&](auto, std::int64_t at) { store_at(view, at, value_at(view, at) + 0.01); });
    found += !compare(off[0], outputs[0], bounds[0]).failure.empty();
  }
  EXPECT_GT(masks, 20);
  EXPECT_GT(sinks, 20);
  EXPECT_GT(scores, 10);
  EXPECT_GT(found, 55);
}

}  // namespace
}  // namespace tilewise::verify
