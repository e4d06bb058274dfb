// The source that bounds of expressions become, compiled for this machine: whatever an expression gives in a tile lies
// between them, and they decide the tiles of the masks that they are there for.
#include "expression/bounds_source.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "../expression/random_expression.hpp"
#include "core/message.hpp"
#include "device/attention/params.h"
#include "expression/parse.hpp"
#include "jit/host_module.hpp"
#include "jit/kernel_cache.hpp"
#include "source_inputs.hpp"

namespace tilewise::expression {
namespace {

using core::concat;

Expression mask_of(std::string_view text) { return parse(text, score_signature(), Type::boolean, "mask_mod"); }
std::string bounds_of(std::string_view text, const std::vector<DeviceTable>& tables = kTables) {
  return bounds_source(mask_of(text), kInputs, tables);
}

/// b, h, q_idx and kv_idx, both ends inclusive.
struct Box {
  std::array<std::int64_t, 4> low, high;
};
struct Bounds {
  std::int64_t low, high;
};

/// One module of many functions, of one lane.
class CompiledBounds {
 public:
  explicit CompiledBounds(const std::vector<Expression>& expressions) {
    std::string text =
        "#include \"device/attention/score_bounds.h\"\n"
        "namespace tilewise::device {\n"
        "struct PlainMachine {\n"
        "  static constexpr int kLanes = 1;\n"
        "  static int lane() { return 0; }\n"
        "  static float shuffle_xor(float x, int) { return x; }\n"
        "  template <class T>\n"
        "  static T load_global(const T* from) { return *from; }\n"
        "};\n"
        "using Tables = ScoreTable[kMostTables];\n";
    std::string cases;
    for (std::size_t i = 0; i < expressions.size(); ++i) {
      const std::string source = bounds_source(expressions[i], kInputs, kTables);
      says_.push_back(!source.empty());
      if (source.empty()) continue;
      text += concat("template <class Machine>\nstatic Bounds bounds_", i,
                     "(const Tables& tables, const Bounds& b, const Bounds& h, const Bounds& q_idx, const Bounds& "
                     "kv_idx) {\n",
                     source, "}\n");
      cases += concat("    case ", i, ": return bounds_", i, "<PlainMachine>(tables, at[0], at[1], at[2], at[3]);\n");
    }
    text +=
        concat("static Bounds bounds(int which, const Tables& tables, const Bounds* at) {\n  switch (which) {\n", cases,
               "  }\n  return {0, 0};\n}\n}\nextern \"C\" void evaluate(int which, const void* tables, const void* "
               "at, void* result) {\n  using namespace tilewise::device;\n  *static_cast<Bounds*>(result) = "
               "bounds(which, *static_cast<const Tables*>(tables), static_cast<const Bounds*>(at));\n}\n");
    const auto compiled = jit::find_or_compile(jit::parse_target("host"), {text, "evaluate", {}});
    module_ = std::make_unique<jit::HostModule>(compiled->image);
    evaluate_ = reinterpret_cast<Evaluate*>(module_->find("evaluate"));
    for (std::size_t i = 0; i < tables_.views.size(); ++i) {
      const TensorView& view = tables_.views[i];
      device_tables_[i].data = view.data;
      std::ranges::fill(device_tables_[i].sizes, 1);
      for (std::size_t d = 0; d < static_cast<std::size_t>(view.rank); ++d) {
        device_tables_[i].sizes[d] = static_cast<std::int32_t>(view.shape[d]);
        device_tables_[i].strides[d] = view.strides[d];
      }
    }
  }

  [[nodiscard]] bool says(std::size_t which) const { return says_[which]; }
  [[nodiscard]] Bounds operator()(std::size_t which, const Box& box) const {
    std::array<Bounds, 4> at{};
    for (std::size_t i = 0; i < at.size(); ++i) at[i] = {box.low[i], box.high[i]};
    Bounds result{};
    evaluate_(static_cast<int>(which), device_tables_, at.data(), &result);
    return result;
  }
  [[nodiscard]] bool sees(const Expression& mask, const std::array<std::int64_t, 4>& at) const {
    Evaluator<float> evaluate(mask, tables_.views);
    const float score = 0.5F;
    std::vector<Input<float>> inputs{{.reals = &score, .uniform = true}};
    for (const std::int64_t& place : at) inputs.push_back({.integers = &place, .uniform = true});
    std::uint8_t result = 0;
    evaluate(inputs, 1, &result);
    return result != 0;
  }

 private:
  using Evaluate = void(int, const void*, const void*, void*);
  Tables tables_;
  device::ScoreTable device_tables_[device::kMostTables]{};
  std::vector<bool> says_;
  std::unique_ptr<jit::HostModule> module_;
  Evaluate* evaluate_ = nullptr;
};

TEST(BoundsSource, HasAStatementForEachTermThatTheResultNeeds) {
  EXPECT_EQ(bounds_of("(table1[q_idx] == table1[kv_idx]) & (table0[b, h] < 1.0)"),
            "    const Bounds t0 = q_idx;\n"
            "    const Bounds t1 = look_up_bounds<Machine, kTableI32>(tables[1], Bounds{-int64_t{2147483648}, "
            "int64_t{2147483647}}, t0);\n"
            "    const Bounds t2 = kv_idx;\n"
            "    const Bounds t3 = look_up_bounds<Machine, kTableI32>(tables[1], Bounds{-int64_t{2147483648}, "
            "int64_t{2147483647}}, t2);\n"
            "    const Bounds t4 = equal_bounds(t1, t3);\n"
            "    const Bounds t9 = Bounds{int64_t{0}, int64_t{1}};\n"
            "    const Bounds t10 = and_bounds(t4, t9);\n"
            "    return t10;\n");
}

/// Floats alone, what may wrap around, and tables without elements.
TEST(BoundsSource, IsEmptyWhereNothingIsKnown) {
  EXPECT_EQ(bounds_of("table0[q_idx, kv_idx] < 0.5"), "");
  EXPECT_EQ(bounds_of("q_idx * 0.5 < kv_idx * 1.0"), "");
  EXPECT_EQ(bounds_of("table1[q_idx] < 1", {{DType::f32}, {DType::i32, true}, {DType::boolean}}), "");
  EXPECT_EQ(bounds_of("q_idx * q_idx * q_idx * q_idx < 7").find("multiplied_bounds(t2"), std::string::npos);
}

TEST(BoundsSource, HoldsEveryResult) {
  if (const std::string reason = jit::compiler_reason(jit::parse_target("host")); !reason.empty())
    GTEST_SKIP() << reason;
  RandomExpression random(11);
  std::vector<Expression> masks;
  while (masks.size() < 200) masks.push_back(random.draw(Type::boolean, 4 + random.below(24)));
  const CompiledBounds compiled(masks);
  std::mt19937 generator(5);
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(generator);
  };
  int decided = 0;
  for (std::size_t i = 0; i < masks.size(); ++i) {
    if (!compiled.says(i)) continue;
    for (int turn = 0; turn < 20; ++turn) {
      Box box{};
      for (std::size_t n = 0; n < 4; ++n) {
        box.low[n] = draw(0, n < 2 ? 2 : turn % 4 == 0 ? kMostRows : 8);
        box.high[n] = n < 2 ? box.low[n] : std::min(box.low[n] + draw(0, 9), kMostRows);
      }
      const Bounds bounds = compiled(i, box);
      decided += bounds.low == bounds.high ? 1 : 0;
      for (int point = 0; point < 40; ++point) {
        std::array<std::int64_t, 4> at{};
        for (std::size_t n = 0; n < 4; ++n) at[n] = draw(box.low[n], box.high[n]);
        const bool sees = compiled.sees(masks[i], at);
        ASSERT_TRUE(sees ? bounds.high == 1 : bounds.low == 0)
            << to_string(masks[i]) << " is " << sees << " at " << at[0] << ", " << at[1] << ", " << at[2] << ", "
            << at[3] << ", bounds " << bounds.low << " to " << bounds.high << "\n"
            << bounds_source(masks[i], kInputs, kTables);
      }
    }
  }
  EXPECT_GT(decided, 500);
}

/// Of table1 = {0, 3, -2, 7}, 0 beyond.
TEST(BoundsSource, DecidesTiles) {
  if (const std::string reason = jit::compiler_reason(jit::parse_target("host")); !reason.empty())
    GTEST_SKIP() << reason;
  struct Case {
    std::string_view text;
    Box box;
    Bounds expected;
  };
  const std::vector<Case> cases{
      {"kv_idx <= q_idx", {{0, 0, 64, 0}, {0, 0, 127, 64}}, {1, 1}},
      {"kv_idx <= q_idx", {{0, 0, 64, 128}, {0, 0, 127, 191}}, {0, 0}},
      {"kv_idx <= q_idx", {{0, 0, 64, 64}, {0, 0, 127, 127}}, {0, 1}},
      {"abs(q_idx - kv_idx) < 100", {{0, 0, 0, 200}, {0, 0, 63, 263}}, {0, 0}},
      {"(q_idx // 64 == kv_idx // 64) | (kv_idx < 4)", {{0, 0, 64, 64}, {0, 0, 127, 127}}, {1, 1}},
      {"table1[q_idx] == table1[kv_idx]", {{0, 0, 1, 1}, {0, 0, 1, 1}}, {1, 1}},
      {"table1[q_idx] == table1[kv_idx]", {{0, 0, 2, 3}, {0, 0, 2, 3}}, {0, 0}},
      {"table1[q_idx] == table1[kv_idx]", {{0, 0, 0, 0}, {0, 0, 3, 3}}, {0, 1}},
      {"table1[q_idx] == 0", {{0, 0, 4, 0}, {0, 0, 9, 9}}, {1, 1}},  // all beyond
      {"table1[q_idx] == 7", {{0, 0, 3, 0}, {0, 0, 3, 9}}, {1, 1}},
      {"table1[q_idx] == 7", {{0, 0, 3, 0}, {0, 0, 4, 9}}, {0, 1}},  // the last one and one beyond
      {"table1[q_idx - 1] >= 0", {{0, 0, 0, 0}, {0, 0, 2, 9}}, {1, 1}},
      {"table2[kv_idx % 3]", {{0, 0, 0, 3}, {0, 0, 9, 3}}, {1, 1}},
      {"table1[kv_idx] < 8", {{0, 0, 0, 0}, {0, 0, 0, kMostRows}}, {1, 1}}};
  std::vector<Expression> masks;
  for (const Case& each : cases) masks.push_back(mask_of(each.text));
  const CompiledBounds compiled(masks);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Bounds actual = compiled(i, cases[i].box);
    EXPECT_EQ(actual.low, cases[i].expected.low) << cases[i].text;
    EXPECT_EQ(actual.high, cases[i].expected.high) << cases[i].text;
  }
}

}  // namespace
}  // namespace tilewise::expression
