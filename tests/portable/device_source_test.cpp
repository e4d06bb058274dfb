// The source that expressions become, compiled for this machine: it computes what the evaluator does, bit for bit.
#include "expression/device_source.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "../expression/random_expression.hpp"
#include "core/message.hpp"
#include "device/attention/params.h"
#include "expression/derivative.hpp"
#include "expression/parse.hpp"
#include "jit/host_module.hpp"
#include "jit/kernel_cache.hpp"
#include "source_inputs.hpp"

namespace tilewise::expression {
namespace {

using core::concat;

std::string source_of(std::string_view text, const std::vector<DeviceTable>& tables = kTables) {
  return device_source(parse(text, score_signature(), Type::real, "score_mod"), kInputs, tables);
}

/// Of short sequences floats hold differences and what is made of them.
TEST(DeviceSource, ComputesSmallIntsInFloats) {
  const auto source = [](std::string_view text, std::int64_t rows) {
    std::vector<Interval> inputs = kInputs;
    inputs[3] = inputs[4] = Interval::of_integers(0, rows);
    return device_source(parse(text, score_signature(), Type::real, "score_mod"), inputs, kTables);
  };
  const std::string_view text = "score * abs(q_idx - kv_idx)";
  EXPECT_NE(source(text, 1 << 23).find("magnitude((real_of(q_idx) - real_of(kv_idx)))"), std::string::npos);
  EXPECT_EQ(source(text, kMostRows).find("magnitude"), std::string::npos);
  EXPECT_EQ(source("score * (q_idx * kv_idx)", 1 << 10).find("real_of"), std::string::npos);
}

TEST(DeviceSource, DividesByConstantsByTheirReciprocals) {
  EXPECT_NE(source_of("score / 20").find("quotient(score, 0x1.4p+4f, 0x1.99999ap-5f)"), std::string::npos);
  for (const char* text : {"score / b", "score / 1e35", "score / 0.5", "score / 1.9999998807907104", "score / 0"}) {
    EXPECT_EQ(source_of(text).find("quotient"), std::string::npos) << text;
  }
}

TEST(DeviceSource, HasAStatementForEachTerm) {
  EXPECT_EQ(source_of("score - table0[b, h] * (q_idx - kv_idx)"),
            "    const float t3 = look_up<Machine, kTableF32>(tables[0], b, h);\n"
            "    const int32_t t6 = subtracted<int32_t>(q_idx, kv_idx);\n"
            "    const float t7 = static_cast<float>(t6);\n"
            "    const float t8 = rounded_product(t3, t7);\n"
            "    const float t9 = score - t8;\n"
            "    return t9;\n");
  std::string squares = "a0 = score;";
  for (int i = 0; i < 60; ++i) squares += concat("a", i + 1, " = a", i, " * a", i, ";");
  const std::string source = source_of(squares + "a60");
  EXPECT_EQ(std::ranges::count(source, '\n'), 61);
}

TEST(DeviceSource, ComputesIn32BitsWhatTheyHold) {
  EXPECT_NE(source_of("score + q_idx // 3").find("floor_divided_integer<int32_t>(q_idx, 3)"), std::string::npos);
  EXPECT_NE(source_of("score + q_idx * q_idx").find("multiplied<int64_t>(q_idx, q_idx)"), std::string::npos);
  EXPECT_NE(source_of("score + min(q_idx * q_idx, 7)").find("static_cast<int32_t>(minimum_of<int64_t>("),
            std::string::npos);
  EXPECT_NE(source_of("score + table1[h]").find("const int32_t"), std::string::npos);
  EXPECT_NE(source_of("score + table1[h]", {{DType::f32}, {DType::i64}, {DType::boolean}}).find("const int64_t"),
            std::string::npos);
}

TEST(DeviceSource, KnowsNotWhichWayATableOfBoolsGoes) {
  const std::string source = source_of("score + select(table2[h], 3000000000, 1)");
  EXPECT_NE(source.find("int64_t{3000000000}"), std::string::npos) << source;
  EXPECT_EQ(source.find("int32_t"), std::string::npos) << source;
}

TEST(DeviceSource, ReadsNothingOfEmptyTables) {
  EXPECT_EQ(source_of("score + table0[b, h]", {{DType::f32, true}, {DType::i32}, {DType::boolean}}).find("look_up"),
            std::string::npos);
}

/// One module of many functions.
class CompiledFunctions {
 public:
  explicit CompiledFunctions(const std::vector<Expression>& expressions) {
    std::string text =
        "#include \"device/attention/score_functions.h\"\n"
        "namespace tilewise::device {\n"
        "struct PlainMachine {\n"
        "  template <class T>\n"
        "  static T load_global(const T* from) { return *from; }\n"
        "  static float exp2(float x) { return __builtin_exp2f(x); }\n"
        "  static float reciprocal(float x) { return 1.0f / x; }\n"
        "};\n"
        "using Tables = ScoreTable[kMostTables];\n";
    std::string cases;
    for (std::size_t i = 0; i < expressions.size(); ++i) {
      text += concat("template <class Machine>\nstatic ",
                     expressions[i].result().type == Type::boolean ? "bool" : "float", " value_", i,
                     "(const Tables& tables, float score, int32_t b, int32_t h, int32_t q_idx, int32_t kv_idx) {\n",
                     device_source(expressions[i], kInputs, kTables), "}\n");
      cases += concat("    case ", i, ": return value_", i, "<PlainMachine>(tables, score, b, h, q_idx, kv_idx);\n");
    }
    text += concat(
        "}\nextern \"C\" float evaluate(int which, const tilewise::device::ScoreTable* all, float score, int32_t b,\n"
        "                              int32_t h, int32_t q_idx, int32_t kv_idx) {\n"
        "  using namespace tilewise::device;\n"
        "  const Tables& tables = *reinterpret_cast<const Tables*>(all);\n  switch (which) {\n",
        cases, "  }\n  return 0.0f;\n}\n");
    const auto compiled = jit::find_or_compile(jit::parse_target("host"), {text, "evaluate", {}});
    module_ = std::make_unique<jit::HostModule>(compiled->image);
    evaluate_ = reinterpret_cast<Evaluate*>(module_->find("evaluate"));
    for (std::size_t i = 0; i < tables_.views.size(); ++i) {
      const TensorView& view = tables_.views[i];
      device::ScoreTable& table = device_tables_[i];
      table.data = view.data;
      std::ranges::fill(table.sizes, 1);
      for (std::size_t d = 0; d < static_cast<std::size_t>(view.rank); ++d) {
        table.sizes[d] = static_cast<std::int32_t>(view.shape[d]);
        table.strides[d] = view.strides[d];
      }
    }
  }

  float operator()(std::size_t which, float score, const std::array<std::int64_t, 4>& at) const {
    const auto narrow = [&](std::size_t i) { return static_cast<std::int32_t>(at[i]); };
    return evaluate_(static_cast<int>(which), device_tables_, score, narrow(0), narrow(1), narrow(2), narrow(3));
  }
  /// In fp32 likewise.
  [[nodiscard]] float expected(const Expression& expression, float score, const std::array<std::int64_t, 4>& at) const {
    Evaluator<float> evaluate(expression, tables_.views);
    std::vector<Input<float>> inputs{{.reals = &score, .uniform = true}};
    for (const std::int64_t& place : at) inputs.push_back({.integers = &place, .uniform = true});
    if (expression.result().type == Type::boolean) {
      std::uint8_t result = 0;
      evaluate(inputs, 1, &result);
      return result;
    }
    float result = 0;
    evaluate(inputs, 1, &result);
    return result;
  }

 private:
  using Evaluate = float(int, const device::ScoreTable*, float, std::int32_t, std::int32_t, std::int32_t, std::int32_t);
  Tables tables_;
  device::ScoreTable device_tables_[device::kMostTables]{};
  std::unique_ptr<jit::HostModule> module_;
  Evaluate* evaluate_ = nullptr;
};

bool has_tanh(const Expression& expression) {
  return std::ranges::any_of(expression.nodes(), [](const Node& node) { return node.op == Op::tanh; });
}

/// But for tanh, which kernels have their own of.
TEST(DeviceSource, ComputesWhatTheEvaluatorDoes) {
  if (const std::string reason = jit::compiler_reason(jit::parse_target("host")); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  RandomExpression random(7);
  std::vector<Expression> expressions;
  while (expressions.size() < 150) {
    Expression drawn = random.draw(random.below(3) == 0 ? Type::boolean : Type::real, 4 + random.below(30));
    if (has_tanh(drawn)) continue;
    if (drawn.result().type == Type::real) {
      const Expression slope = derivative(drawn, "score", "drawn");
      if (slope.nodes().size() > 1) expressions.push_back(slope);
    }
    expressions.push_back(std::move(drawn));
  }
  const CompiledFunctions compiled(expressions);
  std::mt19937 generator(3);
  const auto draw = [&](std::int64_t most) { return std::uniform_int_distribution<std::int64_t>(0, most)(generator); };
  constexpr float kSpecial[] = {0.0F, -0.0F, HUGE_VALF, -HUGE_VALF, std::numeric_limits<float>::quiet_NaN(), 1e-40F};
  for (std::size_t i = 0; i < expressions.size(); ++i) {
    for (int turn = 0; turn < 60; ++turn) {
      const std::int64_t rows = turn % 3 == 0 ? kMostRows : 9;
      const std::array<std::int64_t, 4> at{draw(2), draw(3), draw(rows), draw(rows)};
      float score = std::uniform_real_distribution<float>(-4, 4)(generator);
      if (turn % 6 == 5) score = kSpecial[static_cast<std::size_t>(draw(std::size(kSpecial) - 1))];
      const float actual = compiled(i, score, at), expected = compiled.expected(expressions[i], score, at);
      if (std::isnan(actual) && std::isnan(expected)) continue;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(actual), std::bit_cast<std::uint32_t>(expected))
          << to_string(expressions[i]) << " of score " << score << " at " << at[0] << ", " << at[1] << ", " << at[2]
          << ", " << at[3] << ": " << actual << " instead of " << expected << "\n"
          << device_source(expressions[i], kInputs, kTables);
    }
  }
}

}  // namespace
}  // namespace tilewise::expression
