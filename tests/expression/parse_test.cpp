// Text to expression and back: precedence, types, limits, and text that means harm.
#include "expression/parse.hpp"

#include <gtest/gtest.h>

#include "expression/terms.hpp"
#include "random_expression.hpp"

namespace tilewise::expression {
namespace {

Expression parsed(std::string_view text, Type type = Type::real) {
  return parse(text, score_signature(), type, type == Type::real ? "score_mod" : "mask_mod");
}
std::string printed(std::string_view text, Type type = Type::real) { return to_string(parsed(text, type)); }
std::string message_of(std::string_view text, Type type = Type::real) {
  try {
    return "no error, but " + printed(text, type);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
}

TEST(Parse, SaysWhatItRead) {
  EXPECT_EQ(printed("score + table0[h, clamp(q_idx - kv_idx, 0, 2)]"), "score+table0[h,min(max(q_idx-kv_idx,0),2)]");
  EXPECT_EQ(printed("score * 2"), "score*2.0");
  EXPECT_EQ(printed("where(q_idx >= kv_idx, score, -inf)"), "select(kv_idx<=q_idx,score,-inf)");
  EXPECT_EQ(printed("(score - 1) - (score - 2)"), "score-1.0-(score-2.0)");
  EXPECT_EQ(printed("score * -(q_idx // 2) % 3"), "score*-(q_idx//2)%3.0");
  EXPECT_EQ(printed("q_idx"), "float(q_idx)");
  EXPECT_EQ(printed("q_idx / 2"), "q_idx/2.0");
  EXPECT_EQ(printed("float(q_idx) // float(kv_idx) + score"), "float(q_idx)//float(kv_idx)+score");
  EXPECT_EQ(printed("min(score, 1, q_idx)"), "min(min(score,1.0),q_idx)");
  EXPECT_EQ(printed("(q_idx - kv_idx) * (q_idx - kv_idx) + score"), "t0=q_idx-kv_idx;t0*t0+score");
  EXPECT_EQ(printed("d = q_idx - kv_idx; e = d * d; e * e + score"), "t0=q_idx-kv_idx;t1=t0*t0;t1*t1+score");
  EXPECT_EQ(printed("score * (q_idx > 3)"), "score*select(3<q_idx,1.0,0.0)");
  EXPECT_EQ(printed("1e300 * 0.5 + score + .5e-3 + 1e+2"), "5e+299+score+5e-04+100.0");
  EXPECT_EQ(printed("score + 9223372036854775807 * 0 + -9223372036854775808"), "score+0.0+-9223372036854775808.0");
}

TEST(Parse, BindsAsPythonDoes) {
  const auto mask = [](std::string_view text) { return printed(text, Type::boolean); };
  EXPECT_EQ(mask("q_idx >= kv_idx and not b == 0 or h == 1"), "(kv_idx<=q_idx)&~(b==0)|(h==1)");
  EXPECT_EQ(mask("(q_idx >= kv_idx) & ~(b == 0) | (h == 1)"), "(kv_idx<=q_idx)&~(b==0)|(h==1)");
  EXPECT_EQ(mask("q_idx - kv_idx * 2 < -b // 2"), "q_idx-kv_idx*2<-b//2");
  EXPECT_EQ(mask("table2[h] == (b < 1)"), "table2[h]==(b<1)");
}

TEST(Parse, FoldsAndShares) {
  EXPECT_EQ(printed("score + (7 // -2) + (-7 % 3)"), "score+-4.0+2.0");
  EXPECT_EQ(printed("select(1 < 2, score, exp(score))"), "score");
  EXPECT_EQ(printed("score * 1 + 0 * 2"), "score+0.0");  // -0.0 + 0.0 is another number
  EXPECT_EQ(parsed("(score + 1) * (score + 1)").nodes().size(), 4U);
  EXPECT_EQ(printed("tanh(0.0) + score"), "0.0+score");
  EXPECT_EQ(printed("(q_idx >= 0) & True | (1 > 2)", Type::boolean), "0<=q_idx");
}

TEST(Parse, KnowsEqualExpressions) {
  const Expression a = parsed("score + table0[h, b]"), b = parsed(" score+table0 [h,b] "),
                   c = parsed("score + table0[b, h]");
  EXPECT_EQ(a, b);
  EXPECT_EQ(hash_value(a), hash_value(b));
  EXPECT_NE(a, c);
  EXPECT_NE(hash_value(a), hash_value(c));
  EXPECT_TRUE(a.speaks_of("h"));
  EXPECT_FALSE(a.speaks_of("q_idx"));
}

TEST(Parse, BuildsTheSameInCpp) {
  Builder build(score_signature(), "score_mod");
  const Term q = build.variable("q_idx"), k = build.variable("kv_idx");
  const Term score = build.variable("score"), hidden = build.real(-std::numeric_limits<double>::infinity());
  const Term unused = score * score;
  EXPECT_EQ(build.type(unused), Type::real);
  EXPECT_EQ(build.finish(select(q >= k, score / build.integer(2), hidden), Type::real),
            parsed("select(q_idx >= kv_idx, score / 2, -inf)"));
}

TEST(Parse, ReadsBackWhatItPrints) {
  RandomExpression random(1);
  for (int i = 0; i < 3000; ++i) {
    const Type type = random.below(3) == 0 ? Type::boolean : Type::real;
    const Expression drawn = random.draw(type, 2 + random.below(60));
    const std::string text = to_string(drawn);
    ASSERT_EQ(text.find(' '), std::string::npos);
    const Expression read = parsed(text, type);
    ASSERT_EQ(read, drawn) << text << "\n" << to_string(read);
    ASSERT_EQ(hash_value(read), hash_value(drawn));
  }
}

TEST(Parse, SaysWhatIsWrong) {
  EXPECT_EQ(message_of("score +"), "score_mod: must have a value at byte 7 (got the end)");
  EXPECT_EQ(message_of("score score"), "score_mod: must have an operator or the end at byte 6 (got 'score')");
  EXPECT_EQ(message_of("scores"),
            "score_mod: must speak of score, b, h, q_idx, kv_idx, table0, table1, table2; did you mean score? (got "
            "'scores')");
  EXPECT_EQ(message_of("table3[h]"), "score_mod: must look up one of 3 captured tensors (got table3)");
  EXPECT_EQ(message_of("table0[h]"), "score_mod: table0 takes 2 indices (got 1)");
  EXPECT_EQ(message_of("table1[score]"), "score_mod: table1 takes ints as indices (got float)");
  EXPECT_EQ(message_of("sin(score)"),
            "score_mod: functions are clamp, float, abs, exp, exp2, log, tanh, min, max, select; did you mean min? "
            "(got 'sin')");
  EXPECT_EQ(message_of("q_idx < kv_idx"), "score_mod: must be a float (got bool)");
  EXPECT_EQ(message_of("q_idx", Type::boolean), "mask_mod: must be a bool (got int)");
  EXPECT_EQ(message_of("q_idx & kv_idx", Type::boolean),
            "mask_mod: '&' takes bools; compare numbers first (got int, int)");
  EXPECT_EQ(message_of("q_idx >= kv_idx & h == 0", Type::boolean),
            "mask_mod: '&' takes bools; compare numbers first (got int, int)");
  EXPECT_EQ(message_of("0 <= q_idx < 4", Type::boolean),
            "mask_mod: must have brackets or '&' between comparisons at byte 11 (got '<')");
  EXPECT_EQ(message_of("(b < 1) + (h < 1)"),
            "score_mod: '+' takes numbers; select(condition, 1, 0) makes one of a bool (got bool, bool)");
  EXPECT_EQ(message_of("select(score, 1, 2)"), "score_mod: 'select' takes a bool and two values (got float, int, int)");
  EXPECT_EQ(message_of("exp(score, score)"), "score_mod: 'exp' takes 1 operands (got 2)");
  EXPECT_EQ(message_of("score = 2; score"),
            "score_mod: must have a name that means nothing yet at byte 0 (got 'score')");
  EXPECT_EQ(message_of("1x"), "score_mod: must have a number at byte 0 (got '1x')");
  EXPECT_EQ(message_of("score ** 2"), "score_mod: must have an operator or the end at byte 6 (got '**')");
  EXPECT_EQ(message_of("(score]"), "score_mod: must have ')' at byte 6 (got ']')");
  EXPECT_EQ(message_of("score \xff"), "score_mod: must have an operator or the end at byte 6 (got '\\xff')");
}

TEST(Parse, RefusesConstantsThatOverflow) {
  EXPECT_EQ(message_of("score + 9223372036854775808"),
            "score_mod: a constant must fit in 64 bits (got '9223372036854775808')");
  EXPECT_EQ(message_of("score + 1e999"), "score_mod: a constant must fit in 64 bits (got '1e999')");
  EXPECT_EQ(message_of("score + 9223372036854775807 * 2"),
            "score_mod: constants must stay within 64 bits (got '*' of 9223372036854775807 and 2)");
  EXPECT_EQ(message_of("abs(-9223372036854775808) + score"),
            "score_mod: constants must stay within 64 bits (got 'abs' of -9223372036854775808)");
  EXPECT_EQ(message_of("exp(1000.0) * score"),
            "score_mod: finite constants must give a finite number (got inf from 'exp' of 1000)");
  EXPECT_EQ(message_of("score + 1 // 0"), "score_mod: '//' of constants must not divide by 0 (got 1 // 0)");
  EXPECT_EQ(message_of("score / 0 + 1.0 / 0"),
            "score_mod: finite constants must give a finite number (got inf from '/' of 1 and 0)");
}

TEST(Parse, RefusesWhatIsTooMuch) {
  const auto repeated = [](std::string_view part, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += part;
    return text;
  };
  EXPECT_EQ(message_of(repeated("(", 10000) + "score"), "score_mod: brackets must be <= 208 deep (got more)");
  EXPECT_EQ(message_of(repeated("-", 10000) + "score"), "score_mod: brackets must be <= 208 deep (got more)");
  EXPECT_EQ(message_of(repeated("not ", 3000) + "b", Type::boolean),
            "mask_mod: brackets must be <= 208 deep (got more)");
  EXPECT_EQ(message_of(repeated("table1[", 2000) + "b"), "score_mod: brackets must be <= 208 deep (got more)");
  EXPECT_EQ(message_of("score" + repeated("+h", 5000)),
            "score_mod: terms must stand <= 200 deep within one another (got more)");
  EXPECT_EQ(message_of("score" + repeated("+1", 10000)), "score_mod: must have <= 16384 bytes (got 20005)");
  std::string many;
  for (int i = 0; i < 40; ++i) {
    many += "t" + std::to_string(i) + "=score";
    for (int j = 0; j < 30; ++j) many += "+" + std::to_string(100 * i + j + 2);
    many += ";";
  }
  EXPECT_EQ(message_of(many + "t0"), "score_mod: must have <= 1024 different terms (got more)");
}

TEST(Parse, EndsWithAMessageOrAnExpressionWhateverTheText) {
  constexpr std::array<std::string_view, 34> kParts{
      "score", "q_idx", "b", "h",   "table0", "table1", "(",   ")",      "[",   "]",     ",", "+",
      "-",     "*",     "/", "//",  "%",      "<",      "<=",  "==",     "!=",  "&",     "|", "~",
      "not ",  "and ",  "1", "2.5", "=",      ";",      "min", "select", "inf", "\0\x80"};
  RandomExpression random(2);
  int read = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (int length = 1 + random.below(9); length > 0; --length)
      text += kParts[static_cast<std::size_t>(random.below(34))];
    try {
      const Expression expression = parsed(text, i % 2 == 0 ? Type::real : Type::boolean);
      ASSERT_EQ(parsed(to_string(expression), expression.result().type), expression) << text;
      ++read;
    } catch (const Error& error) {
      ASSERT_NE(std::string_view(error.what()).find("_mod: "), std::string_view::npos) << text;
    }
  }
  EXPECT_GT(read, 100);
}

}  // namespace
}  // namespace tilewise::expression
