// A linear layer's problem: its text, every way a text can be wrong, the normal form, and what it asks of
// implementations.
#include "linear_support.hpp"

namespace tilewise {
namespace {

using test::expect_error, test::expect_invalid;

LinearProblem problem_of(const std::string& text) { return parse_problem(text); }

TEST(LinearText, PrintsTheExampleOfTheInterface) {
  LinearProblem problem;
  problem.w_format = parse_block_format("mxfp4");
  problem.dtype = problem.out_dtype = DType::bf16;
  problem.tokens = 64;
  problem.n = problem.k = 4096;
  problem.groups = LinearGroups::offsets_i32;
  problem.num_experts = 8;
  const std::string text = "linear w_format=mxfp4 dtype=bf16 tokens=64 n=4096 k=4096 groups=offsets_i32 num_experts=8";
  EXPECT_EQ(to_string(problem), text);
  EXPECT_EQ(problem_of(text), problem);
}

TEST(LinearText, FillsInDefaults) {
  const LinearProblem problem = problem_of("linear x_format=fp8_1x128 w_format=fp8_128x128 tokens=1 n=2 k=3");
  EXPECT_EQ(problem.dtype, DType::fp8_e4m3);
  EXPECT_EQ(problem.out_dtype, DType::bf16);
  EXPECT_EQ(problem.num_experts, 1);
  EXPECT_EQ(problem.x_format.block_columns, 128);
  EXPECT_EQ(problem_of("linear dtype=f64 tokens=1 n=2 k=3").out_dtype, DType::f64);
  const LinearProblem backward = problem_of("linear_backward w_format=mxfp8 dtype=bf16 tokens=1 n=2 k=3");
  EXPECT_TRUE(backward.dx && !backward.dw && !backward.dbias);
}

/// A matrix of one column or without elements lies one way, and the CPU does not care about alignment.
TEST(LinearText, HasOneNormalForm) {
  EXPECT_FALSE(problem_of("linear tokens=1 n=2 k=1 w_transposed=1").w_transposed);
  EXPECT_FALSE(problem_of("linear tokens=1 n=0 k=3 w_transposed=1").w_transposed);
  EXPECT_TRUE(problem_of("linear tokens=1 n=1 k=3 w_transposed=1").w_transposed);
  EXPECT_FALSE(problem_of("linear_backward tokens=1 n=2 k=1 dw_transposed=1").dw_transposed);
  EXPECT_FALSE(problem_of("linear tokens=1 n=2 k=2 unaligned=1").unaligned);
  EXPECT_TRUE(problem_of("linear device=cuda tokens=1 n=2 k=2 unaligned=1").unaligned);
}

struct BadText {
  const char *text, *sentence;
};
class BadLinearText : public testing::TestWithParam<BadText> {};

TEST_P(BadLinearText, IsRefused) {
  const std::string text = std::string(GetParam().text) + " tokens=4 n=4 k=4";
  expect_invalid(GetParam().sentence, [&] { (void)parse_problem(text); });
}

INSTANTIATE_TEST_SUITE_P(
    All, BadLinearText,
    testing::Values(
        BadText{"linear token=4", "problem: unknown key; did you mean tokens? (got 'token')"},
        BadText{"linear num_experts=2", "num_experts: must be 1 with groups=none (got 2)"},
        BadText{"linear groups=offsets_i32 num_experts=-1", "w: num_experts must be >= 0 (got -1)"},
        BadText{"linear groups=ends",
                "groups: must be one of none, offsets_i32, offsets_i64, counts_i32, counts_i64 "
                "(got 'ends')"},
        BadText{"linear activation=swish",
                "activation: must be one of identity, silu, gelu, gelu_tanh, relu, relu_squared, swiglu_oai (got "
                "'swish')"},
        BadText{"linear activation=swiglu_oai",
                "activation: must have one argument, swiglu_oai is of a gate and what it gates (got swiglu_oai)"},
        BadText{"linear x_format=nvfp4 w_format=nvfp4",
                "x_format: must be none, fp8_tensor, fp8_row, fp8_1x128, fp8_1x128_e8m0 or mxfp8 (got nvfp4)"},
        BadText{"linear x_format=fp8_128x128 w_format=fp8_128x128",
                "x_format: must be none, fp8_tensor, fp8_row, fp8_1x128, fp8_1x128_e8m0 or mxfp8 (got fp8_128x128)"},
        BadText{"linear x_format=mxfp8", "w_format: must be given with x_format=mxfp8 (got none)"},
        BadText{"linear dtype=fp8_e4m3 w_format=mxfp8", "x_format: must be given where x is fp8_e4m3 (got none)"},
        BadText{"linear dtype=f64 w_format=mxfp8", "w_format: must be none where x is f64 (got mxfp8)"},
        BadText{"linear dtype=bf16 w_format=mxfp4 w_transposed=1",
                "w: k must be contiguous with w_format=mxfp4, of which two elements along k share a byte (got n "
                "contiguous)"},
        BadText{"linear dx=0", "dx: belongs to linear_backward (got it in linear)"},
        BadText{"linear dw=0", "dw: belongs to linear_backward (got it in linear)"},
        BadText{"linear bias=f32 dbias=1", "dbias: belongs to linear_backward (got it in linear)"},
        BadText{"linear dw_transposed=1", "dw_transposed: belongs to linear_backward (got it in linear)"},
        BadText{"linear_backward x_format=mxfp8 w_format=mxfp8",
                "x_format: belongs to linear (got mxfp8 in linear_backward)"},
        BadText{"linear_backward dtype=bf16 w_format=mxfp4 dw=1",
                "dw: excludes w_format=mxfp4, what is quantised has no gradient (got both)"},
        BadText{"linear_backward dw=0 dw_transposed=1", "dw_transposed: requires dw (got none)"},
        BadText{"linear_backward dbias=1", "dbias: requires bias (got none)"},
        BadText{"linear_backward dx=0 dw=0", "dx: at least one of dx, dw and dbias must be given (got none)"}));

TEST(LinearText, WeightsThatCannotBeCountedInBytesAreRefused) {
  expect_invalid("w: must have less than 2^60 elements (got 2147483647 * 200000 * 200000)", [] {
    (void)parse_problem("linear tokens=1 n=200000 k=200000 groups=offsets_i32 num_experts=2147483647");
  });
}

TEST(LinearText, OtherDtypesAreErrorsOfType) {
  const auto refused = [](const std::string& sentence, const std::string& words) {
    expect_error(ErrorCode::invalid_type, sentence,
                 [&] { (void)parse_problem("linear " + words + " tokens=1 n=1 k=1"); });
  };
  refused("x: dtype must be f32, bf16, f16, f64 or fp8_e4m3 (got i32)", "dtype=i32 out_dtype=f32");
  refused("x: dtype must be fp8_e4m3 with x_format=fp8_row (got bf16)", "x_format=fp8_row w_format=fp8_row dtype=bf16");
  refused("out: dtype must be f64 where that of x is f64 (got f32)", "dtype=f64 out_dtype=f32");
  refused("out: dtype must be f32, bf16 or f16 where that of x is bf16 (got f64)", "dtype=bf16 out_dtype=f64");
  refused("bias: dtype must be f32, bf16 or f16 where that of x is bf16 (got f64)", "dtype=bf16 bias=f64");
  refused("bias: dtype must be f64 where that of x is f64 (got f32)", "dtype=f64 bias=f32");
}

TEST(LinearFeatures, EachFieldAsksForItsOwn) {
  const auto asked = [](const std::string& words) {
    const LinearProblem problem = problem_of(words + " tokens=4 n=8 k=16");
    return operations::linear::to_string(operations::linear::required_features(problem));
  };
  EXPECT_EQ(asked("linear"), "forward, f32");
  EXPECT_EQ(asked("linear dtype=bf16 out_dtype=f32"), "forward, bf16, out_dtype");
  EXPECT_EQ(asked("linear dtype=f64 bias=f64 activation=relu"), "forward, f64, bias, activation");
  EXPECT_EQ(asked("linear groups=counts_i64 num_experts=3 batch_invariant=1"),
            "forward, f32, grouped, batch_invariant");
  EXPECT_EQ(asked("linear w_transposed=1"), "forward, f32, w_transposed");
  EXPECT_EQ(asked("linear x_format=fp8_tensor w_format=fp8_row"), "forward, x_quantised, fp8_tensor, fp8_row");
  EXPECT_EQ(asked("linear x_format=fp8_1x128 w_format=fp8_128x128_e8m0"),
            "forward, x_quantised, fp8_1x128, fp8_128x128, e8m0_blocks");
  EXPECT_EQ(asked("linear x_format=mxfp8 w_format=mxfp4"), "forward, x_quantised, mxfp8, mxfp4");
  EXPECT_EQ(asked("linear dtype=f16 w_format=nvfp4"), "forward, f16, nvfp4");
  EXPECT_EQ(asked("linear_backward dtype=f16"), "backward, f16, dx, dw");
  EXPECT_EQ(asked("linear_backward w_format=mxfp8"), "backward, f32, mxfp8, dx, backward_quantised");
  EXPECT_EQ(asked("linear_backward dx=0 dw_transposed=1 bias=f32 dbias=1"),
            "backward, f32, bias, w_transposed, dw, dbias");
}

TEST(LinearExplain, NamesWhatAnImplementationLacks) {
  const Explanation explanation = explain(parse_problem("linear dtype=bf16 tokens=64 n=64 k=64"));
  EXPECT_EQ(plan(explanation.problem, {"reference"}).implementation(), "reference");
  EXPECT_NE(plan(explanation.problem).implementation(), "reference");
  EXPECT_EQ(
      plan(parse_problem("linear x_format=mxfp8 w_format=mxfp4 tokens=4 n=4 k=32"), {"reference"}).implementation(),
      "reference");
}

}  // namespace
}  // namespace tilewise
