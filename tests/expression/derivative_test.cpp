// Derivatives beside finite differences and closed forms.
#include "expression/derivative.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "expression/parse.hpp"
#include "random_expression.hpp"

namespace tilewise::expression {
namespace {

std::string derived(std::string_view text) {
  return to_string(derivative(parse(text, score_signature(), Type::real, "score_mod"), "score", "score_mod"));
}

TEST(Derivative, IsTheExpressionsOwn) {
  EXPECT_EQ(derived("score"), "1.0");
  EXPECT_EQ(derived("score + table0[h, b]"), "1.0");
  EXPECT_EQ(derived("q_idx - kv_idx"), "0.0");
  EXPECT_EQ(derived("2 * score"), "2.0");
  EXPECT_EQ(derived("20 * tanh(score / 20)"), "t0=tanh(score/20.0);0.05*(1.0-t0*t0)*20.0");
  EXPECT_EQ(derived("select(q_idx >= kv_idx, score, -inf)"), "select(kv_idx<=q_idx,1.0,0.0)");
  EXPECT_EQ(derived("max(score, 0)"), "select(0.0<=score,1.0,0.0)");
}

TEST(Derivative, RefusesWhatHasNone) {
  const Expression mask = parse("q_idx >= kv_idx", score_signature(), Type::boolean, "mask_mod");
  EXPECT_THROW((void)derivative(mask, "score", "mask_mod"), Error);
  const Expression score = parse("score", score_signature(), Type::real, "score_mod");
  EXPECT_THROW((void)derivative(score, "h", "score_mod"), Error);
  EXPECT_THROW((void)derivative(score, "s", "score_mod"), Error);
}

TEST(Derivative, IsWhatDifferencesApproach) {
  const Tables tables;
  const Places places(5, 64);
  const double step = std::ldexp(1.0, -20);
  Places above = places, below = places;
  for (double& score : above.score) score += step;
  for (double& score : below.score) score -= step;
  RandomExpression random(6);
  int compared = 0, changing = 0, wrong = 0;
  std::string last_wrong;
  for (int i = 0; i < 1500; ++i) {
    const Expression expression = random.draw(Type::real, 2 + random.below(20));
    if (!expression.speaks_of("score")) continue;
    const std::vector<double> slopes = evaluated(derivative(expression, "score", "drawn"), tables, places);
    const std::vector<double> at = evaluated(expression, tables, places), high = evaluated(expression, tables, above),
                              low = evaluated(expression, tables, below);
    for (std::size_t lane = 0; lane < at.size(); ++lane) {
      const double right = (high[lane] - at[lane]) / step, left = (at[lane] - low[lane]) / step;
      // At kinks, at jumps and where the curve bends much, differences say nothing.
      const double scale = std::max({1.0, std::fabs(left), std::fabs(right)});
      if (!(std::fabs(right - left) <= 1e-4 * scale) || scale > 1e4 || std::fabs(at[lane]) > 1e6) continue;
      if (std::isnan(slopes[lane])) continue;  // an infinity within
      if (!(std::fabs(slopes[lane] - (left + right) / 2) <= 1e-4 * scale)) {
        ++wrong;
        last_wrong = to_string(expression);
      }
      ++compared;
      changing += slopes[lane] != 0.0 ? 1 : 0;
    }
  }
  // Where jumps are dense, as in score % exp(-9.0), differences may agree and say nothing all the same.
  EXPECT_LE(wrong * 1000, compared) << wrong << " of " << compared << ", the last in " << last_wrong;
  EXPECT_GT(compared, 10000);
  EXPECT_GT(changing, 5000);
}

}  // namespace
}  // namespace tilewise::expression
