// A problem of experts as text and as features, and every rule by its message.
#include <algorithm>

#include "moe_support.hpp"
#include "tilewise/any_problem.hpp"

namespace tilewise {
namespace {

using test::expect_error, test::expect_invalid;

const std::string kSizes = " tokens=4 hidden=8 intermediate=16 num_experts=3 top_k=2";

MoeProblem problem_of(const std::string& words) { return parse_problem(words + kSizes).get<MoeProblem>(); }

TEST(MoeText, PrintsWhatIsNotTheDefault) {
  for (const std::string& text :
       {"moe" + kSizes, "moe_backward dtype=bf16" + kSizes + " dx=0 dgate_up_transposed=1",
        "moe w_format=mxfp4 dtype=bf16" + kSizes +
            " gate=interleaved activation=swiglu_oai clamp=before gate_up_bias=bf16 down_bias=bf16",
        "moe w_format=fp8_128x128 x_format=fp8_1x128 h_format=fp8_1x128" + kSizes + " first_expert=64",
        "moe_backward dtype=bf16" + kSizes + " save_gate_up=1 dx=0",
        "moe dtype=f64" + kSizes + " gate=none activation=relu_squared norm=f64 norm_epsilon=1e-05",
        "moe ids_dtype=i64 weights_dtype=bf16" + kSizes +
            " clamp=after limit=10 weight_on_input=1 batch_invariant=1 gate_up_transposed=1 down_transposed=1"}) {
    const AnyProblem problem = parse_problem(text);
    EXPECT_EQ(to_string(problem), text);
    EXPECT_EQ(parse_problem(to_string(problem)), problem);
  }
  const MoeProblem quantised = problem_of("moe w_format=fp8_row x_format=fp8_row");
  EXPECT_EQ(quantised.dtype, DType::fp8_e4m3);
  EXPECT_EQ(quantised.out_dtype, DType::bf16);
  EXPECT_EQ(problem_of("moe dtype=f64").weights_dtype, DType::f64);
  EXPECT_FALSE(problem_of("moe_backward w_format=mxfp8 dtype=f16").dgate_up);
}

TEST(MoeText, MatricesThatLieEitherWayLieInOne) {
  const auto one = parse_problem(
      "moe tokens=1 hidden=1 intermediate=1 num_experts=1 top_k=1 gate_up_transposed=1 down_transposed=1");
  EXPECT_FALSE(one.get<MoeProblem>().gate_up_transposed);
  EXPECT_FALSE(one.get<MoeProblem>().down_transposed);
}

struct BadText {
  std::string text, sentence;
};
class BadMoeText : public testing::TestWithParam<BadText> {};

TEST_P(BadMoeText, IsRefused) {
  expect_invalid(GetParam().sentence, [] { (void)parse_problem(GetParam().text); });
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, BadMoeText,
    testing::Values(
        BadText{"moe tokens=1", "hidden: must be given (got no such word)"},
        BadText{"moe tokens=1 hidden=1 intermediate=1 num_experts=1", "top_k: must be given (got no such word)"},
        BadText{"moe tokens=1 hidden=1 intermediate=1 num_experts=1 top_k=1 topk=1",
                "problem: unknown key; did you mean top_k? (got 'topk')"},
        BadText{"moe tokens=-1 hidden=1 intermediate=1 num_experts=1 top_k=1", "x: tokens must be >= 0 (got -1)"},
        BadText{"moe tokens=1 hidden=4294967296 intermediate=1 num_experts=1 top_k=1",
                "x: hidden must be <= 2147483647 (got 4294967296)"},
        BadText{"moe tokens=1 hidden=2000000000 intermediate=2000000000 num_experts=5 top_k=1",
                "down: must have less than 2^60 elements (got 5 * 2000000000 * 2000000000)"},
        BadText{"moe first_expert=-1" + kSizes, "first_expert: must be >= 0 (got -1)"}));

INSTANTIATE_TEST_SUITE_P(
    Activations, BadMoeText,
    testing::Values(
        BadText{"moe gate=none activation=swiglu_oai" + kSizes,
                "activation: swiglu_oai requires a gate (got gate=none)"},
        BadText{"moe activation=swiglu" + kSizes,
                "activation: must be one of identity, silu, gelu, gelu_tanh, relu, relu_squared, swiglu_oai; did you "
                "mean silu? (got 'swiglu')"},
        BadText{"moe alpha=2" + kSizes, "alpha: requires activation=swiglu_oai (got 2 with activation=silu)"},
        BadText{"moe activation=swiglu_oai alpha=inf" + kSizes, "alpha: must be finite (got inf)"},
        BadText{"moe limit=7" + kSizes, "limit: requires clamp=before or clamp=after (got 7 with clamp=none)"},
        BadText{"moe clamp=after limit=0" + kSizes, "limit: must be > 0 and finite with clamp=after (got 0)"},
        BadText{"moe clamp=before limit=nan" + kSizes, "limit: must be > 0 and finite with clamp=before (got nan)"},
        BadText{"moe norm_epsilon=1" + kSizes, "norm_epsilon: requires norm_weight (got 1 without it)"},
        BadText{"moe norm=f32 norm_epsilon=-1" + kSizes, "norm_epsilon: must be >= 0 and finite (got -1)"}));

INSTANTIATE_TEST_SUITE_P(
    Formats, BadMoeText,
    testing::Values(
        BadText{"moe w_format=fp8_row x_format=mxfp4" + kSizes,
                "x_format: must be none, fp8_tensor, fp8_row, fp8_1x128, fp8_1x128_e8m0 or mxfp8 (got mxfp4)"},
        BadText{"moe w_format=fp8_row h_format=fp8_tensor" + kSizes,
                "h_format: must be none, fp8_row, fp8_1x128, fp8_1x128_e8m0 or mxfp8 (got fp8_tensor)"},
        BadText{"moe x_format=mxfp8" + kSizes, "w_format: must be given with x_format=mxfp8 (got none)"},
        BadText{"moe h_format=mxfp8" + kSizes, "w_format: must be given with h_format=mxfp8 (got none)"},
        BadText{"moe w_format=mxfp8 dtype=f64" + kSizes, "w_format: must be none where x is f64 (got mxfp8)"},
        BadText{"moe w_format=nvfp4 gate_up_transposed=1" + kSizes,
                "gate_up: hidden must be contiguous with w_format=nvfp4, of which two elements along it share a byte "
                "(got it transposed)"},
        BadText{"moe w_format=mxfp4 down_transposed=1" + kSizes,
                "down: intermediate must be contiguous with w_format=mxfp4, of which two elements along it share a "
                "byte (got it transposed)"}));

INSTANTIATE_TEST_SUITE_P(
    Passes, BadMoeText,
    testing::Values(BadText{"moe w_format=mxfp8 h_format=mxfp8 save_gate_up=1" + kSizes,
                            "save_gate_up: excludes h_format=mxfp8, which has no gradients (got both)"},
                    BadText{"moe norm=f32 save_gate_up=1" + kSizes,
                            "save_gate_up: excludes norm_weight, which has no gradients (got both)"},
                    BadText{"moe save_gate_up=1 tokens=2000000000 hidden=8 intermediate=16 num_experts=3 top_k=2",
                            "save_gate_up: requires tokens * top_k <= 2^31 - 1 (got 2000000000 * 2)"},
                    BadText{"moe dx=0" + kSizes, "dx: belongs to moe_backward (got it in moe)"},
                    BadText{"moe down_bias=f32 ddown_bias=1" + kSizes,
                            "ddown_bias: belongs to moe_backward (got it in moe)"},
                    BadText{"moe_backward norm=f32" + kSizes, "norm_weight: belongs to moe (got it in moe_backward)"},
                    BadText{"moe_backward w_format=mxfp8 h_format=mxfp8" + kSizes,
                            "h_format: belongs to moe (got mxfp8 in moe_backward)"},
                    BadText{"moe_backward w_format=mxfp8 x_format=mxfp8" + kSizes,
                            "x_format: belongs to moe (got mxfp8 in moe_backward)"},
                    BadText{"moe_backward w_format=mxfp8 ddown=1" + kSizes,
                            "ddown: excludes w_format=mxfp8, what is quantised has no gradient (got both)"},
                    BadText{"moe_backward ddown_bias=1" + kSizes, "ddown_bias: requires down_bias (got none)"},
                    BadText{"moe_backward dgate_up=0 dgate_up_transposed=1" + kSizes,
                            "dgate_up_transposed: requires dgate_up (got none)"},
                    BadText{"moe_backward dx=0 dtopk_weights=0 dgate_up=0 ddown=0" + kSizes,
                            "dx: at least one gradient must be given (got none)"}));

TEST(MoeText, OtherDtypesAreErrorsOfType) {
  const auto refused = [](const std::string& words, const std::string& sentence) {
    expect_error(ErrorCode::invalid_type, sentence, [&] { (void)problem_of(words); });
  };
  refused("moe dtype=i32", "x: dtype must be f32, bf16, f16, f64 or fp8_e4m3 (got i32)");
  refused("moe ids_dtype=u8", "topk_ids: dtype must be i32 or i64 (got u8)");
  refused("moe weights_dtype=f64", "topk_weights: dtype must be f32, bf16 or f16 where that of x is f32 (got f64)");
  refused("moe dtype=f64 down_bias=f32", "down_bias: dtype must be f64 where that of x is f64 (got f32)");
  refused("moe_backward out_dtype=i32", "dout: dtype must be f32, bf16 or f16 where that of x is f32 (got i32)");
  expect_invalid("x_format: must be given where x is fp8_e4m3 (got none)",
                 [] { (void)problem_of("moe w_format=fp8_row dtype=fp8_e4m3"); });
}

TEST(MoeFeatures, EachFieldAsksForItsOwn) {
  const auto asked = [](const std::string& words) {
    return operations::moe::to_string(operations::moe::required_features(problem_of(words)));
  };
  EXPECT_EQ(asked("moe"), "forward, f32");
  EXPECT_EQ(asked("moe_backward dtype=f16"), "backward, f16, dx, dtopk_weights, dweights");
  EXPECT_EQ(asked("moe_backward dx=0 dtopk_weights=0 ddown=0"), "backward, f32, dweights");
  EXPECT_EQ(asked("moe_backward down_bias=f32 ddown_bias=1"),
            "backward, f32, bias, dx, dtopk_weights, dweights, dbias");
  EXPECT_EQ(asked("moe_backward save_gate_up=1 ddown=0"), "backward, f32, save_gate_up, dx, dtopk_weights, dweights");
  EXPECT_EQ(asked("moe dtype=bf16 out_dtype=f32"), "forward, bf16, out_dtype");
  EXPECT_EQ(asked("moe w_format=mxfp4 dtype=bf16"), "forward, bf16, mxfp4");
  EXPECT_EQ(asked("moe w_format=fp8_128x128_e8m0 x_format=fp8_1x128 h_format=mxfp8"),
            "forward, x_quantised, h_quantised, fp8_1x128, fp8_128x128, e8m0_blocks, mxfp8");
  EXPECT_EQ(asked("moe gate=none activation=relu"), "forward, f32, no_gate, activation");
  EXPECT_EQ(asked("moe gate=interleaved activation=swiglu_oai clamp=before gate_up_bias=f32"),
            "forward, f32, interleaved, swiglu_oai, clamp, bias");
  EXPECT_EQ(asked("moe norm=f32 weight_on_input=1 first_expert=1 down_transposed=1 batch_invariant=1"),
            "forward, f32, norm, weight_on_input, first_expert, transposed, batch_invariant");
}

TEST(MoeExplain, ShowsEveryRowOfExpertsAlone) {
  const Explanation explanation = explain(parse_problem("moe" + kSizes));
  EXPECT_TRUE(
      std::ranges::any_of(explanation.rows, [](const ExplainRow& row) { return row.implementation == "cpu.generic"; }));
  EXPECT_TRUE(
      std::ranges::any_of(explanation.rows, [](const ExplainRow& row) { return row.implementation == "reference"; }));
  EXPECT_NE(plan(explanation.problem).implementation(), "reference");
  EXPECT_EQ(plan(explanation.problem, {"reference"}).implementation(), "reference");
}

/// By shapes alone, and bounded however many tokens there are.
TEST(MoePlan, SaysHowMuchWorkspaceItWants) {
  const auto bytes_of = [](std::int64_t tokens) {
    MoeProblem problem;
    problem.dtype = problem.out_dtype = DType::bf16;
    problem.tokens = tokens;
    problem.hidden = 2048, problem.intermediate = 768, problem.num_experts = 128, problem.top_k = 8;
    return plan(problem).workspace_size();
  };
  EXPECT_GT(bytes_of(16), bytes_of(1));
  EXPECT_LT(bytes_of(1'000'000), std::size_t{300} << 20);
}

}  // namespace
}  // namespace tilewise
