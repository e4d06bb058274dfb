// A quantize problem: its text, every way a text can be wrong, the normal form, and what it asks of implementations.
#include <gtest/gtest.h>

#include <string>

#include "../../support/expect_error.hpp"
#include "operations/quantize/quantize.hpp"
#include "tilewise/plan.hpp"

namespace tilewise {
namespace {

using test::expect_error, test::expect_invalid;

QuantizeProblem problem_of(const std::string& text) { return parse_problem(text); }

TEST(QuantizeText, PrintsTheExampleOfTheInterface) {
  QuantizeProblem problem;
  problem.format = parse_block_format("mxfp4");
  problem.dtype = DType::bf16;
  problem.rows = 4096, problem.columns = 2048;
  const std::string text = "quantize format=mxfp4 dtype=bf16 rows=4096 columns=2048";
  EXPECT_EQ(to_string(problem), text);
  EXPECT_EQ(problem_of(text), problem);
}

TEST(QuantizeText, ReadsEveryField) {
  const QuantizeProblem problem = problem_of(
      "quantize device=cuda format=fp8_128x128_e8m0 dtype=f16 power_of_two=1 stacked=1 num_experts=3 rows=4 "
      "columns=5 unaligned=1");
  EXPECT_EQ(problem.format, parse_block_format("fp8_128x128_e8m0"));
  EXPECT_TRUE(problem.power_of_two && problem.stacked && problem.unaligned);
  EXPECT_EQ(problem.num_experts, 3);
  EXPECT_FALSE(problem_of("dequantize format=mxfp8 rows=4 columns=5 unaligned=1").unaligned);  // a CPU does not care
}

struct BadText {
  const char *text, *sentence;
};
class BadQuantizeText : public testing::TestWithParam<BadText> {};

TEST_P(BadQuantizeText, IsRefused) {
  const std::string text = std::string(GetParam().text) + " rows=4 columns=4";
  expect_invalid(GetParam().sentence, [&] { (void)parse_problem(text); });
}

INSTANTIATE_TEST_SUITE_P(
    All, BadQuantizeText,
    testing::Values(
        BadText{"quantize", "format: must be given (got no such word)"},
        BadText{"quantize format=none",
                "format: must be fp8_tensor, fp8_row, fp8_1x128, fp8_128x128, the last two with _e8m0, mxfp8, mxfp4 or "
                "nvfp4 (got none)"},
        BadText{"quantize format=mxfp4 row=4", "problem: unknown key; did you mean rows? (got 'row')"},
        BadText{"quantize format=mxfp4 num_experts=2", "num_experts: must be 1 without stacked (got 2)"},
        BadText{"quantize format=mxfp4 stacked=1 num_experts=-2", "x: num_experts must be >= 0 (got -2)"},
        BadText{"quantize format=mxfp4 power_of_two=1",
                "power_of_two: must be false with format=mxfp4, which has one rule for its scales (got true)"},
        BadText{"quantize format=mxfp8 power_of_two=1",
                "power_of_two: must be false with format=mxfp8, which has one rule for its scales (got true)"},
        BadText{"quantize format=nvfp4 power_of_two=1",
                "power_of_two: must be false with format=nvfp4, which has one rule for its scales (got true)"},
        BadText{"dequantize format=fp8_row power_of_two=1",
                "power_of_two: belongs to quantize (got it in dequantize)"}));

TEST(QuantizeText, OtherDtypesAreErrorsOfType) {
  expect_error(ErrorCode::invalid_type, "x: dtype must be f32, bf16 or f16 (got f64)",
               [] { (void)parse_problem("quantize format=mxfp4 dtype=f64 rows=1 columns=1"); });
  expect_error(ErrorCode::invalid_type, "out: dtype must be f32, bf16 or f16 (got i32)",
               [] { (void)parse_problem("dequantize format=mxfp4 dtype=i32 rows=1 columns=1"); });
}

TEST(QuantizeText, NumbersThatCannotBeCountedInBytesAreRefused) {
  expect_invalid("x: must have less than 2^60 elements (got 2147483647 * 200000 * 200000)", [] {
    (void)parse_problem("quantize format=mxfp4 stacked=1 num_experts=2147483647 rows=200000 columns=200000");
  });
}

TEST(QuantizeFeatures, EachFieldAsksForItsOwn) {
  const auto asked = [](const std::string& words) {
    const QuantizeProblem problem = problem_of(words + " rows=4 columns=8");
    return operations::quantize::to_string(operations::quantize::required_features(problem));
  };
  EXPECT_EQ(asked("quantize format=fp8_tensor"), "quantize, f32, fp8_tensor");
  EXPECT_EQ(asked("dequantize format=fp8_row dtype=bf16"), "dequantize, bf16, fp8_row");
  EXPECT_EQ(asked("quantize format=fp8_1x128 power_of_two=1"), "quantize, f32, fp8_1x128, power_of_two");
  EXPECT_EQ(asked("quantize format=fp8_128x128_e8m0 dtype=f16"), "quantize, f16, fp8_128x128, e8m0_blocks");
  EXPECT_EQ(asked("quantize format=mxfp8 stacked=1 num_experts=2"), "quantize, f32, mxfp8, stacked");
  EXPECT_EQ(asked("quantize format=mxfp4"), "quantize, f32, mxfp4");
  EXPECT_EQ(asked("dequantize format=nvfp4"), "dequantize, f32, nvfp4");
}

TEST(QuantizeExplain, PrefersAnInstructionSetToTheReference) {
  for (const std::string text :
       {"quantize format=nvfp4 rows=1 columns=16", "dequantize format=mxfp8 rows=900 columns=900"})
    EXPECT_NE(plan(parse_problem(text)).implementation(), "reference") << text;
}

}  // namespace
}  // namespace tilewise
