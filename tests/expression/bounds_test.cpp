// Bounds hold what is evaluated, and are tight enough to tell empty and full blocks of usual masks.
#include "expression/bounds.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "expression/parse.hpp"
#include "random_expression.hpp"

namespace tilewise::expression {
namespace {

/// Bounds of a mask over queries and keys of a block.
Interval block(std::string_view text, std::int64_t q_low, std::int64_t q_high, std::int64_t k_low,
               std::int64_t k_high) {
  const std::array<Interval, 5> inputs{Interval::of_reals(-100, 100), Interval::of_integers(0, 0),
                                       Interval::of_integers(0, 7), Interval::of_integers(q_low, q_high),
                                       Interval::of_integers(k_low, k_high)};
  return bounds(parse(text, score_signature(), Type::boolean, "mask_mod"), inputs);
}

TEST(Bounds, TellEmptyAndFullBlocks) {
  const char* causal = "q_idx >= kv_idx";
  EXPECT_TRUE(block(causal, 128, 255, 0, 127).always());
  EXPECT_TRUE(block(causal, 0, 127, 128, 255).never());
  EXPECT_FALSE(block(causal, 0, 127, 0, 127).always() || block(causal, 0, 127, 0, 127).never());
  const char* window = "(q_idx >= kv_idx) & (q_idx - kv_idx <= 256) | (kv_idx < 64)";
  EXPECT_TRUE(block(window, 1024, 1151, 0, 127).always() == false && !block(window, 1024, 1151, 0, 127).never());
  EXPECT_TRUE(block(window, 1024, 1151, 128, 255).never());
  EXPECT_TRUE(block(window, 1024, 1151, 0, 63).always());
  EXPECT_TRUE(block("q_idx // 128 == kv_idx // 128", 128, 255, 128, 255).always());
  EXPECT_TRUE(block("q_idx // 128 == kv_idx // 128", 128, 255, 256, 383).never());
  EXPECT_TRUE(block("kv_idx % 512 < 128", 0, 127, 512, 639).always());
  EXPECT_TRUE(block("kv_idx % 512 < 128", 0, 127, 640, 767).never());
  EXPECT_TRUE(block("abs(q_idx - kv_idx) * 1.0 >= 1", 0, 127, 128, 255).always());
  EXPECT_TRUE(block("table2[q_idx] & (q_idx < kv_idx)", 128, 255, 0, 127).never());
  EXPECT_TRUE(block("h < 8", 0, 1, 0, 1).always());
  EXPECT_TRUE(block("~(h < 8)", 0, 1, 0, 1).never());
}

/// Whether `value` lies between the bounds.
bool holds(const Interval& interval, double value) {
  return std::isnan(value) ? interval.may_be_nan : interval.real_low <= value && value <= interval.real_high;
}

TEST(Bounds, HoldWhateverIsEvaluated) {
  const Tables tables;
  const Places places(7, 100);
  const auto of = [](const std::vector<std::int64_t>& values) {
    const auto [low, high] = std::ranges::minmax(values);
    return Interval::of_integers(low, high);
  };
  RandomExpression random(8);
  int bounded = 0;
  for (int i = 0; i < 3000; ++i) {
    const std::int64_t first = random.below(90), count = 1 + random.below(10);  // few, so that intervals are narrow
    Places some = places;
    const auto cut = [&](auto& values) { values = {values.begin() + first, values.begin() + first + count}; };
    cut(some.score), cut(some.b), cut(some.h), cut(some.q_idx), cut(some.kv_idx);
    const auto [low, high] = std::ranges::minmax(some.score);
    const std::array<Interval, 5> inputs{Interval::of_reals(low, high), of(some.b), of(some.h), of(some.q_idx),
                                         of(some.kv_idx)};
    const bool boolean = random.below(2) == 0;
    const Expression expression = random.draw(boolean ? Type::boolean : Type::real, 2 + random.below(20));
    const Interval interval = bounds(expression, inputs);
    if (boolean) {
      for (const std::uint8_t value : evaluated<std::uint8_t>(expression, tables, some)) {
        ASSERT_TRUE(interval.low <= value && value <= interval.high) << to_string(expression);
      }
      bounded += interval.always() || interval.never() ? 1 : 0;
      continue;
    }
    for (const double value : evaluated(expression, tables, some)) {
      ASSERT_TRUE(holds(interval, value))
          << to_string(expression) << ": " << value << " in " << interval.real_low << " to " << interval.real_high;
    }
    std::vector<float> scores(some.score.begin(), some.score.end()), results(scores.size());
    const std::array<Input<float>, 5> narrow{{{.reals = scores.data()},
                                              {.integers = some.b.data()},
                                              {.integers = some.h.data()},
                                              {.integers = some.q_idx.data()},
                                              {.integers = some.kv_idx.data()}}};
    const auto [low32, high32] = std::ranges::minmax(scores);
    std::array<Interval, 5> around = inputs;
    around[0] = Interval::of_reals(std::min<double>(low, low32), std::max<double>(high, high32));
    const Interval wider = bounds(expression, around);
    Evaluator<float>(expression, tables.views)(narrow, some.count(), results.data());
    for (const float value : results) ASSERT_TRUE(holds(wider, value)) << to_string(expression) << ": " << value;
    bounded += std::isfinite(interval.real_low) && std::isfinite(interval.real_high) ? 1 : 0;
  }
  EXPECT_GT(bounded, 800);
}

}  // namespace
}  // namespace tilewise::expression
