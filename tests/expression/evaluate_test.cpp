// What expressions compute: closed forms, Python's // and %, look-ups and their bounds.
#include "expression/evaluate.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "expression/parse.hpp"
#include "random_expression.hpp"

namespace tilewise::expression {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Of one score, one query and one key.
template <typename Real = double>
Real value(std::string_view text, double score = 0, std::int64_t q_idx = 0, std::int64_t kv_idx = 0) {
  static Tables tables;
  const Expression expression = parse(text, score_signature(), Type::real, "score_mod");
  Evaluator<Real> evaluate(expression, tables.views);
  const auto real = static_cast<Real>(score);
  const std::int64_t zero = 0;
  const std::array<Input<Real>, 5> inputs{{{.reals = &real, .uniform = true},
                                           {.integers = &zero, .uniform = true},
                                           {.integers = &zero, .uniform = true},
                                           {.integers = &q_idx, .uniform = true},
                                           {.integers = &kv_idx, .uniform = true}}};
  Real result = 0;
  evaluate(inputs, 1, &result);
  return result;
}

TEST(Evaluate, ComputesWhatItSays) {
  EXPECT_EQ(value("score * 2 - 1", 1.5), 2.0);
  EXPECT_EQ(value("exp(score) + exp2(score) + log(abs(score)) + tanh(score)", -0.5),
            std::exp(-0.5) + std::exp2(-0.5) + std::log(0.5) + std::tanh(-0.5));
  EXPECT_EQ(value<float>("exp(score) / 3", 0.1), std::exp(0.1F) / 3.0F);
  EXPECT_EQ(value("clamp(score, -1, q_idx)", 5.0, 3), 3.0);
  EXPECT_EQ(value("select(q_idx >= kv_idx, score, -inf)", 1.0, 3, 4), -kInfinity);
  EXPECT_EQ(value("select(q_idx >= kv_idx, score, nan)", 1.0, 4, 4), 1.0);
  EXPECT_EQ(value("float((q_idx - kv_idx) * (q_idx - kv_idx))", 0.0, 3, 7), 16.0);
  EXPECT_EQ(value("q_idx / 2", 0.0, 3), 1.5);
}

TEST(Evaluate, DividesAsPythonDoes) {
  for (const std::int64_t a : {-7, -6, -1, 0, 1, 6, 7}) {
    for (const std::int64_t b : {-3, -2, -1, 1, 2, 3}) {
      const double quotient = std::floor(static_cast<double>(a) / static_cast<double>(b));
      const double rest = static_cast<double>(a) - static_cast<double>(b) * quotient;
      EXPECT_EQ(value("float(q_idx // kv_idx)", 0, a, b), quotient) << a << " // " << b;
      EXPECT_EQ(value("float(q_idx % kv_idx)", 0, a, b), rest) << a << " % " << b;
      EXPECT_EQ(value("float(q_idx) // float(kv_idx)", 0, a, b), quotient) << a << " // " << b;
      EXPECT_EQ(value("float(q_idx) % float(kv_idx)", 0, a, b), rest) << a << " % " << b;
    }
  }
  EXPECT_EQ(value("score // 0.1", 1.0), 9.0);  // 0.1 is a little more than a tenth
  EXPECT_EQ(value("score // inf", -1.0), -1.0);
  EXPECT_EQ(value("float(q_idx // kv_idx)", 0, 5, 0), 0.0);
  EXPECT_EQ(value("float(q_idx % kv_idx)", 0, 5, 0), 5.0);
  EXPECT_EQ(value("score // float(kv_idx)", -5.0), -kInfinity);
  EXPECT_TRUE(std::isnan(value("score % float(kv_idx)", 5.0)));
}

TEST(Evaluate, IntegersWrapAroundAndNothingTraps) {
  constexpr std::int64_t kLowest = std::numeric_limits<std::int64_t>::min();
  EXPECT_EQ(value("float(q_idx // kv_idx)", 0, kLowest, -1), static_cast<double>(kLowest));
  EXPECT_EQ(value("float(q_idx % kv_idx)", 0, kLowest, -1), 0.0);
  EXPECT_EQ(value("float(abs(q_idx) + 0 * kv_idx)", 0, kLowest), static_cast<double>(kLowest));
  EXPECT_EQ(value("float(q_idx - 1)", 0, kLowest), static_cast<double>(std::numeric_limits<std::int64_t>::max()));
  EXPECT_EQ(value("float(q_idx * kv_idx)", 0, kLowest, 3), static_cast<double>(kLowest));
}

TEST(Evaluate, NanWinsAsInTorch) {
  for (const char* text : {"min(score, 1)", "min(1, score)", "max(score, 1)", "max(1, score)", "clamp(score, 0, 1)",
                           "abs(score)", "score // 2", "score % 2", "tanh(score)"}) {
    EXPECT_TRUE(std::isnan(value(text, kNan))) << text;
  }
  EXPECT_EQ(value("select((score == score) | (score < 1) | (score >= 1), 1, 2)", kNan), 2.0);
  EXPECT_EQ(value("select(score != score, 1, 2)", kNan), 1.0);
}

TEST(Evaluate, LooksUpWithinBounds) {
  EXPECT_EQ(value("table0[q_idx, kv_idx]", 0, 1, 2), -0.75);
  EXPECT_EQ(value("float(table1[q_idx])", 0, 2), -2.0);
  EXPECT_EQ(value("select(table2[q_idx], 1, 2)", 0, 1), 2.0);
  EXPECT_EQ(value("table0[q_idx, kv_idx]", 0, 1, 3), 0.0);
  EXPECT_EQ(value("table0[q_idx, kv_idx]", 0, -1, 0), 0.0);
  EXPECT_EQ(value("float(table1[table1[q_idx]])", 0, 2), 0.0);
}

TEST(Evaluate, TellsOfTheFirstIndexOutOfRange) {
  Tables tables;
  const Expression expression = parse("table0[h, kv_idx]", score_signature(), Type::real, "score_mod");
  Evaluator<float> evaluate(expression, tables.views);
  const std::vector<std::int64_t> keys{0, 2, 3, 4};
  const std::int64_t h = 1;
  const std::array<Input<float>, 5> inputs{{{}, {}, {.integers = &h, .uniform = true}, {}, {.integers = keys.data()}}};
  std::array<float, 4> results{};
  evaluate(inputs, 2, results.data());
  EXPECT_FALSE(evaluate.out_of_range());
  evaluate(inputs, 4, results.data());
  EXPECT_EQ(results, (std::array<float, 4>{0.0F, -0.75F, 0.0F, 0.0F}));
  ASSERT_TRUE(evaluate.out_of_range());
  EXPECT_EQ(to_string(*evaluate.out_of_range()), "table0: index 1 must be >= 0 and < 3 (got 3)");
}

TEST(Evaluate, ReadsTablesOfAnyTypeAndStride) {
  const std::vector<std::uint16_t> bf16{0x3F80, 0xFFFF, 0xC000, 0xFFFF};  // 1, a gap, -2, a gap
  const std::vector<std::int64_t> big{(std::int64_t{1} << 53) + 1};
  const Signature signature{{{"i", Type::integer}}, {{Type::real, 1}, {Type::integer, 1}}};
  const std::vector<TensorView> tables{TensorView(const_cast<std::uint16_t*>(bf16.data()), DType::bf16, {2}, {2}),
                                       TensorView(const_cast<std::int64_t*>(big.data()), DType::i64, {1})};
  const auto compute = [&](std::string_view text, std::int64_t i) {
    const Expression expression = parse(text, signature, Type::real, "f");
    Evaluator<double> evaluate(expression, tables);
    double result = 0;
    const std::array<Input<double>, 1> inputs{{{.integers = &i}}};
    evaluate(inputs, 1, &result);
    return result;
  };
  EXPECT_EQ(compute("table0[i]", 0), 1.0);
  EXPECT_EQ(compute("table0[i]", 1), -2.0);
  EXPECT_EQ(compute("table1[0] - 9007199254740992", 0), 1.0);
  EXPECT_EQ(table_type(DType::i32, "table0"), Type::integer);
  EXPECT_THROW((void)table_type(DType::fp4_e2m1, "table0"), Error);
}

TEST(Evaluate, GivesEachLaneWhatItHasAlone) {
  const Tables tables;
  const Places places(3, 150);  // two blocks and a part of one
  RandomExpression random(4);
  for (int i = 0; i < 300; ++i) {
    const Expression expression = random.draw(Type::real, 30);
    const std::vector<double> all = evaluated(expression, tables, places);
    Evaluator<double> evaluate(expression, tables.views);
    for (const std::size_t lane : {0U, 63U, 64U, 149U}) {
      const std::array<Input<double>, 5> inputs{{{.reals = &places.score[lane], .uniform = true},
                                                 {.integers = &places.b[lane], .uniform = true},
                                                 {.integers = &places.h[lane], .uniform = true},
                                                 {.integers = &places.q_idx[lane], .uniform = true},
                                                 {.integers = &places.kv_idx[lane]}}};
      double alone = 0;
      evaluate(inputs, 1, &alone);
      ASSERT_TRUE(alone == all[lane] || (std::isnan(alone) && std::isnan(all[lane]))) << to_string(expression);
    }
  }
}

}  // namespace
}  // namespace tilewise::expression
