// Linear layers as Hopper takes them, under emulation against the reference: tiles, options, groups of any rows,
// hostile offsets, scales, and what is refused.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "../support/expect_passed.hpp"
#include "core/message.hpp"
#include "tilewise/linear.hpp"

namespace tilewise::test {
namespace {

using core::concat;

constexpr std::string_view kName = "emulation.sm90";

/// Checks two problems that differ in strides and groups, of which one has special values, where the schedule has
/// these tiles.
void check(const std::string& text, std::string_view tiles = "") {
  const AnyProblem problem = parse_problem("linear " + text);
  const std::string schedule = plan(problem, {std::string(kName)}).schedule();
  ASSERT_NE(schedule.find(tiles), std::string::npos) << "other tiles: " << schedule << "\n  " << text;
  for (const bool special : {false, true}) expect_passed(problem, kName, aligned_seed(special));
}

TEST(EmulatedHopperLinear, EveryTile) {
  check("dtype=bf16 tokens=40 n=72 k=136");
  check("dtype=f16 tokens=140 n=136 k=72");
  check("dtype=bf16 tokens=270 n=264 k=200 w_transposed=1");
}

TEST(EmulatedHopperLinear, EveryOption) {
  check("dtype=bf16 tokens=20 n=72 k=40 bias=f32 activation=silu");
  check("dtype=bf16 tokens=20 n=72 k=40 bias=bf16 activation=gelu out_dtype=f16");
  check("dtype=f16 tokens=20 n=72 k=40 bias=f16 activation=relu_squared out_dtype=bf16 batch_invariant=1");
}

TEST(EmulatedHopperLinear, GroupsOfAnyRows) {
  check("dtype=bf16 tokens=150 n=72 k=40 groups=offsets_i32 num_experts=5 bias=f32");
  check("dtype=f16 tokens=33 n=136 k=72 groups=counts_i64 num_experts=40 activation=gelu_tanh");
  check("dtype=bf16 tokens=300 n=264 k=40 groups=offsets_i64 num_experts=3 w_transposed=1");
  check("dtype=bf16 tokens=9 n=8 k=8 groups=counts_i32 num_experts=70");
}

TEST(EmulatedHopperLinear, GroupsWithSidesSwapped) {
  check("dtype=bf16 tokens=700 n=520 k=136 groups=offsets_i32 num_experts=3 bias=bf16 activation=silu",
        "tiles of up to 256 rows by 128 of w, two side by side");
  check("dtype=bf16 tokens=300 n=272 k=72 groups=counts_i32 num_experts=2 bias=f32 out_dtype=f16",
        "tiles of up to 192 rows");
  check("dtype=f16 tokens=150 n=264 k=200 groups=offsets_i64 num_experts=2", "tiles of up to 128 rows");
  check("dtype=f16 tokens=90 n=264 k=72 groups=counts_i64 num_experts=140 out_dtype=bf16", "tiles of up to 64 rows");
}

TEST(EmulatedHopperLinear, ScalesOfBlocks) {
  const std::string fp8 = "dtype=fp8_e4m3 x_format=fp8_1x128 w_format=fp8_128x128 ";
  check(fp8 + "tokens=60 n=136 k=272");
  check(fp8 + "tokens=130 n=72 k=144 bias=bf16 activation=silu out_dtype=f16");
  check(fp8 + "tokens=100 n=264 k=640 groups=offsets_i32 num_experts=4");
  check("dtype=fp8_e4m3 x_format=fp8_1x128_e8m0 w_format=fp8_128x128_e8m0 tokens=30 n=72 k=400");
}

TEST(EmulatedHopperLinear, WithoutRows) { check("dtype=bf16 tokens=0 n=72 k=40"); }

std::string reason_of(const std::string& text) {
  for (const ExplainRow& row : explain(parse_problem("linear " + text)).rows) {
    if (row.implementation == kName)
      return row.accepted ? concat("accepted", row.chosen ? ", chosen" : "") : row.reason;
  }
  return "no such row";
}

TEST(EmulatedHopperLinear, RefusesWithAReasonAndIsNeverChosenUnasked) {
  EXPECT_EQ(reason_of("dtype=bf16 tokens=20 n=64 k=64"), "accepted");
  EXPECT_EQ(reason_of("dtype=f32 tokens=20 n=64 k=64"), "does not support f32");
  EXPECT_EQ(reason_of("dtype=bf16 tokens=20 n=60 k=64"), "n must be a multiple of 8 (got 60)");
  EXPECT_EQ(reason_of("dtype=bf16 tokens=20 n=64 k=64 out_dtype=f32"), "out must be bf16 or f16 (got f32)");
  EXPECT_EQ(reason_of("dtype=bf16 tokens=20 n=64 k=64 w_format=fp8_128x128"),
            "quantised rows and weights must be fp8_1x128 by fp8_128x128 (got none by fp8_128x128)");
}

}  // namespace
}  // namespace tilewise::test
