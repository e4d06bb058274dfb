// Every sentence of validate(), and values just inside each limit.
#include <limits>

#include "../../core/support.hpp"

namespace tilewise {
namespace {

using test::expect_error;
using test::expect_invalid;

Problem valid_problem(const std::string& operation = "attention_forward") {
  return parse_problem(operation + " batch_size=2 seqlen_q=16 num_heads_q=4 num_heads_k=2 head_dim=64");
}

struct BadProblem {
  const char* sentence;
  void (*change)(Problem&);
};

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

void pack(Problem& p) {
  p.layout = Layout::thd;
  p.total_q = p.total_k = 32;
}

class Validate : public testing::TestWithParam<BadProblem> {};

TEST_P(Validate, NamesTheField) {
  Problem problem = valid_problem();
  GetParam().change(problem);
  expect_invalid(GetParam().sentence, [&] { validate(problem); });
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, Validate,
    testing::Values(
        BadProblem{"q: batch_size must be >= 0 (got -1)", [](Problem& p) { p.batch_size = -1; }},
        BadProblem{"q: batch_size must be <= 2147483647 (got 9223372036854775807)",
                   [](Problem& p) { p.batch_size = kHuge; }},
        BadProblem{"q: seqlen_q must be >= 0 (got -1)", [](Problem& p) { p.seqlen_q = -1; }},
        BadProblem{"q: seqlen_q must be <= 2147483647 (got 2147483648)", [](Problem& p) { p.seqlen_q = 2147483648; }},
        BadProblem{"k: seqlen_k must be >= 0 (got -5)", [](Problem& p) { p.seqlen_k = -5; }},
        BadProblem{"k: seqlen_k must be <= 2147483647 (got 9223372036854775807)",
                   [](Problem& p) { p.seqlen_k = kHuge; }},
        BadProblem{"total_q: requires layout=thd (got 5)", [](Problem& p) { p.total_q = 5; }},
        BadProblem{"total_k: requires layout=thd (got -1)", [](Problem& p) { p.total_k = -1; }},
        BadProblem{"max_seqlen_q: must be >= 0 (got -1)", [](Problem& p) { pack(p), p.seqlen_q = -1; }},
        BadProblem{"max_seqlen_k: must be <= 2147483647 (got 9223372036854775807)",
                   [](Problem& p) { pack(p), p.seqlen_k = kHuge; }},
        BadProblem{"q: total_q must be >= 0 (got -1)", [](Problem& p) { pack(p), p.total_q = -1; }},
        BadProblem{"k: total_k must be <= 2147483647 (got 2147483648)",
                   [](Problem& p) { pack(p), p.total_k = 2147483648; }},
        BadProblem{"q: num_heads_q must be >= 1 (got 0)", [](Problem& p) { p.num_heads_q = 0; }},
        BadProblem{"k: num_heads_k must be >= 1 (got 0)", [](Problem& p) { p.num_heads_k = 0; }},
        BadProblem{"q: num_heads_q must be a multiple of num_heads_k (got 4 and 3)",
                   [](Problem& p) { p.num_heads_k = 3; }},
        BadProblem{"q: batch_size * num_heads_q must be <= 2147483647 (got 1073741824 * 4)",
                   [](Problem& p) { p.batch_size = 1 << 30; }},
        BadProblem{"q: head_dim must be >= 1 (got 0)", [](Problem& p) { p.head_dim = 0; }},
        BadProblem{"q: head_dim must be <= 576 (got 577)", [](Problem& p) { p.head_dim = 577; }},
        BadProblem{"v: head_dim_v must be >= 1 (got 0)", [](Problem& p) { p.head_dim_v = 0; }},
        BadProblem{"v: head_dim_v must be <= 512 (got 513)", [](Problem& p) { p.head_dim_v = 513; }},
        BadProblem{"q: must have less than 2^63 bytes (got 268435456 * 2147483647 * 4 * 64 elements of 4 bytes)",
                   [](Problem& p) { p.batch_size = 1 << 28, p.seqlen_q = 2147483647; }},
        BadProblem{"k: must have less than 2^63 bytes (got 268435456 * 2147483647 * 2 * 64 elements of 4 bytes)",
                   [](Problem& p) { p.batch_size = 1 << 28, p.seqlen_k = 2147483647; }},
        BadProblem{
            "v: must have less than 2^63 bytes (got 268435456 * 2147483647 * 2 * 512 elements of 4 bytes)",
            [](Problem& p) { p.batch_size = 1 << 28, p.seqlen_k = 2147483647, p.head_dim = 1, p.head_dim_v = 512; }},
        BadProblem{
            "out: must have less than 2^63 bytes (got 268435456 * 2147483647 * 4 * 512 elements of 4 bytes)",
            [](Problem& p) { p.batch_size = 1 << 28, p.seqlen_q = 2147483647, p.head_dim = 1, p.head_dim_v = 512; }},
        BadProblem{"softmax_lse: must have less than 2^63 bytes (got 2147483647 * 1 * 2147483647 elements of 4 bytes)",
                   [](Problem& p) {
                     p.dtype = DType::bf16;
                     p.batch_size = p.seqlen_q = 2147483647;
                     p.num_heads_q = p.num_heads_k = p.head_dim = p.head_dim_v = 1;
                   }},
        BadProblem{"bias: must have less than 2^63 bytes (got 2 * 4 * 2147483647 * 2147483647 elements of 4 bytes)",
                   [](Problem& p) {
                     p.bias = BiasKind::f32, p.bias_dims = {true, true, true, true};
                     p.seqlen_q = p.seqlen_k = 2147483647;
                   }}));

INSTANTIATE_TEST_SUITE_P(
    Options, Validate,
    testing::Values(
        BadProblem{"window_left: must be -1 (unbounded) or 0 to 2147483647 (got -2)",
                   [](Problem& p) { p.window_left = -2; }},
        BadProblem{"window_right: must be -1 (unbounded) or 0 to 2147483647 (got 9223372036854775807)",
                   [](Problem& p) { p.window_right = kHuge; }},
        BadProblem{"window_right: must be <= 0 with mask=causal (got 1)",
                   [](Problem& p) { p.mask = Mask::causal, p.window_right = 1; }},
        BadProblem{"softmax_scale: must be finite in f32 (got nan)", [](Problem& p) { p.softmax_scale = kNan; }},
        BadProblem{"softmax_scale: must be finite in f32 (got -inf)", [](Problem& p) { p.softmax_scale = -kInfinity; }},
        BadProblem{"softmax_scale: must be finite in f32 (got 1e+39)", [](Problem& p) { p.softmax_scale = 1e39; }},
        BadProblem{"softcap: must be 0 (off), or positive and finite in f32 (got -1)",
                   [](Problem& p) { p.softcap = -1; }},
        BadProblem{"softcap: must be 0 (off), or positive and finite in f32 (got nan)",
                   [](Problem& p) { p.softcap = kNan; }},
        BadProblem{"softcap: must be 0 (off), or positive and finite in f32 (got 1e-50)",
                   [](Problem& p) { p.softcap = 1e-50; }},
        BadProblem{"dropout_p: must be >= 0 and < 1 (got 1)", [](Problem& p) { p.dropout_p = 1; }},
        BadProblem{"dropout_p: must be >= 0 and < 1 (got -0.5)", [](Problem& p) { p.dropout_p = -0.5; }},
        BadProblem{"dropout_p: must be >= 0 and < 1 (got nan)", [](Problem& p) { p.dropout_p = kNan; }},
        BadProblem{"dlse: belongs to attention_backward (got it in attention_forward)",
                   [](Problem& p) { p.dlse = true; }},
        BadProblem{"dq: belongs to attention_backward (got it in attention_forward)", [](Problem& p) { p.dq = false; }},
        BadProblem{"dbias: belongs to attention_backward (got it in attention_forward)",
                   [](Problem& p) { p.dbias = true; }},
        BadProblem{"dsink: belongs to attention_backward (got it in attention_forward)",
                   [](Problem& p) { p.sink = SinkKind::f32, p.dsink = true; }}));

class ValidateBackward : public testing::TestWithParam<BadProblem> {};

TEST_P(ValidateBackward, NamesTheField) {
  Problem problem = valid_problem("attention_backward");
  GetParam().change(problem);
  expect_invalid(GetParam().sentence, [&] { validate(problem); });
}

INSTANTIATE_TEST_SUITE_P(
    Gradients, ValidateBackward,
    testing::Values(BadProblem{"softmax_lse: must be given in attention_backward",
                               [](Problem& p) { p.softmax_lse = false; }},
                    BadProblem{"dbias: requires bias (got none)", [](Problem& p) { p.dbias = true; }},
                    BadProblem{"dbias: a bool bias has no gradient (got bias=bool)",
                               [](Problem& p) { p.dbias = true, p.bias = BiasKind::boolean; }},
                    BadProblem{"dsink: requires sink (got none)", [](Problem& p) { p.dsink = true; }},
                    BadProblem{"dq: at least one of dq, dk, dv, dbias, dsink and dtables must be given (got none)",
                               [](Problem& p) { p.dq = p.dk = p.dv = false; }}));

TEST(Validate, WrongDtypeIsATypeError) {
  Problem problem = valid_problem();
  problem.dtype = DType::i32;
  expect_error(ErrorCode::invalid_type, "q: dtype must be f32, bf16, f16, f64 or fp8_e4m3 (got i32)",
               [&] { validate(problem); });
}

TEST(Validate, Fp8IsAForwardPassWithAnOutOf16Bits) {
  const auto refuse = [](const std::string& sentence, const std::string& words, ErrorCode code) {
    expect_error(code, sentence, [&] { validate(parse_problem(words)); });
  };
  const std::string fp8 = "attention_forward seqlen_q=16 head_dim=64 dtype=fp8_e4m3 ";
  validate(
      parse_problem(fp8 + "out_dtype=f16 q_scale=tensor k_scale=head v_scale=batch_head bias=bool[1,1,q,k] sink=1"));
  refuse("q: dtype must be f32, bf16, f16 or f64 in attention_backward (got fp8_e4m3, which has no gradient)",
         "attention_backward seqlen_q=16 head_dim=64 dtype=fp8_e4m3", ErrorCode::invalid_type);
  refuse("out: dtype must be bf16 or f16 with q in fp8_e4m3 (got f32)", fp8 + "out_dtype=f32", ErrorCode::invalid_type);
  refuse("bias: dtype must be f32 or bool with q in fp8_e4m3 (got fp8_e4m3)", fp8 + "bias=query[1,1,q,k]",
         ErrorCode::invalid_type);
  refuse("sink: dtype must be f32 with q in fp8_e4m3 (got fp8_e4m3)", fp8 + "sink=query", ErrorCode::invalid_type);
  const std::string half = "attention_forward seqlen_q=16 head_dim=64 dtype=bf16 ";
  refuse("out: dtype must be that of q, bf16 (got f16)", half + "out_dtype=f16", ErrorCode::invalid_type);
  for (const std::string name : {"q_scale", "k_scale", "v_scale"}) {
    refuse(name + ": requires q, k and v in fp8_e4m3 (got bf16)", half + name + "=tensor", ErrorCode::invalid_argument);
  }
}

TEST(Validate, NumbersAreThoseOfWhatIsComputedIn) {
  const std::string shape = "attention_forward seqlen_q=4 head_dim=8 dtype=";
  expect_invalid("softmax_scale: must be finite in f32 (got 1e+39)",
                 [&] { (void)parse_problem(shape + "f32 softmax_scale=1e39"); });
  expect_invalid("softcap: must be 0 (off), or positive and finite in f32 (got 1e-40)",
                 [&] { (void)parse_problem(shape + "bf16 softcap=1e-40"); });
  EXPECT_EQ(parse_problem(shape + "f64 softmax_scale=1e39 softcap=1e-40").get<AttentionProblem>().softcap, 1e-40);
  expect_invalid("softcap: must be 0 (off), or positive and finite in f64 (got -1)",
                 [&] { (void)parse_problem(shape + "f64 softcap=-1"); });
}

TEST(Validate, AcceptsTheEdges) {
  for (const char* text : {"seqlen_q=0 head_dim=1", "batch_size=0 seqlen_q=4 head_dim=576 head_dim_v=512",
                           "seqlen_q=2147483647 head_dim=64", "seqlen_q=4 head_dim=8 softmax_scale=0",
                           "seqlen_q=4 head_dim=8 softmax_scale=-3.5", "seqlen_q=4 head_dim=8 dropout_p=0.9999999999",
                           "seqlen_q=4 head_dim=8 mask=causal window_right=0 window_left=0",
                           "seqlen_q=4 head_dim=8 window_left=2147483647 window_right=2147483647",
                           "layout=thd batch_size=0 max_seqlen_q=0 head_dim=8",
                           "layout=thd batch_size=2 max_seqlen_q=100 total_q=7 head_dim=8 seqused_q=1 leftpad_k=1"}) {
    EXPECT_NO_THROW((void)parse_problem(std::string("attention_forward ") + text)) << text;
  }
}

TEST(Validate, DropoutStaysBelowOne) {
  const Problem problem = parse_problem("attention_forward seqlen_q=4 head_dim=8 dropout_p=0.9999999999");
  EXPECT_EQ(problem.dropout_p, 65535.0 / 65536.0);
}

}  // namespace
}  // namespace tilewise
