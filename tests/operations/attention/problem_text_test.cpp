// Problem text: printing, parsing, the normal form, and every way a text can be wrong.
#include <cmath>
#include <random>

#include "../../core/support.hpp"
#include "operations/attention/rules.hpp"

namespace tilewise {
namespace {

using test::expect_invalid;

TEST(ProblemText, SinkSaysItsDtype) {
  const std::string shape = " seqlen_q=4 head_dim=8";
  for (const char* options :
       {"dtype=bf16 sink=1", "dtype=bf16 sink=query", "dtype=f64 sink=1", "dtype=f64 sink=query"}) {
    const Problem problem = parse_problem("attention_forward" + shape + " " + options);
    EXPECT_EQ(parse_problem(to_string(problem)), problem) << options;
    EXPECT_EQ(problem.sink, std::string_view(options).ends_with("query") ? SinkKind::query : SinkKind::f32);
  }
  EXPECT_EQ(to_string(parse_problem("attention_forward" + shape + " sink=query")),
            "attention_forward" + shape + " sink=1");  // q's dtype is f32
}

TEST(ProblemText, FunctionsHaveOneForm) {
  const std::string shape = "attention_forward seqlen_q=4 head_dim=8 ";
  const Problem problem = parse_problem(
      shape + "score_mod=\"score + table0[h, clamp(q_idx - kv_idx, 0, 3)]\" mask_mod=b>=1 tables=f32[1,4],i64[7]");
  const std::string canonical =
      shape + "score_mod=score+table0[h,min(max(q_idx-kv_idx,0),3)] mask_mod=1<=b tables=f32[1,4],i64[7]";
  EXPECT_EQ(to_string(problem), canonical);
  EXPECT_EQ(parse_problem(canonical), problem);
  EXPECT_EQ(hash_value(parse_problem(canonical)), hash_value(problem));
  const Problem other = parse_problem(shape + "score_mod=score+table0[h,0] mask_mod=1<=b tables=f32[1,5],i64[7]");
  EXPECT_NE(other, problem);
  EXPECT_NE(hash_value(other), hash_value(problem));
  EXPECT_EQ(to_string(parse_problem(shape + "score_mod=score mask_mod=0<1 tables=f32[3]")),
            shape.substr(0, shape.size() - 1));
}

TEST(ProblemText, RefusesFunctionsThatAreNoGood) {
  const auto refused = [](const std::string& words, const std::string& sentence) {
    expect_invalid(sentence, [&] { (void)parse_problem("attention_forward seqlen_q=4 head_dim=8 " + words); });
  };
  refused("score_mod=score+", "score_mod: must have a value at byte 6 (got the end)");
  refused("mask_mod=q_idx", "mask_mod: must be a bool (got int)");
  refused("mask_mod=score<1", "mask_mod: must speak of b, h, q_idx, kv_idx (got 'score')");
  refused("score_mod=table0[h]", "score_mod: must look up one of 0 captured tensors (got table0)");
  refused("score_mod=table0[h] tables=f32[4,4]", "score_mod: table0 takes 2 indices (got 1)");
  refused("tables=f32[4]", "tables: requires score_mod or mask_mod (got 1 without)");
  for (const char* word :
       {"f32", "f32[", "f32[]", "f32[4", "f32[4,]", "f32[4]i32[4]", "f32[4],", "f32[1,1,1,1,1]", "f32[a]"}) {
    const bool empty = std::string_view(word) == "f32[]";
    refused(std::string("score_mod=score*2 tables=") + word,
            empty ? "table0: must have 1 to 4 dimensions (got 0)"
                  : "tables: must be none or element types with 1 to 4 sizes, such as f32[16,128],i32[64] (got '" +
                        std::string(word) + "')");
  }
  refused("score_mod=score*2 tables=f32[-1]",
          "table0: must have sizes >= 0 and less than 2^63 bytes (got size -1 in dimension 0)");
  refused("score_mod=score*2 tables=f32[4],f32[4],f32[4],f32[4],f32[4],f32[4],f32[4],f32[4],f32[4]",
          "tables: must be <= 8 (got 9)");
  refused("score_mod=\"score", "problem: must close every quote (got 'score_mod=\"score')");
}

TEST(ProblemText, PrintsTheExampleOfTheInterface) {
  Problem problem;
  problem.dtype = DType::bf16;
  problem.batch_size = 2;
  problem.seqlen_q = problem.seqlen_k = 4096;
  problem.num_heads_q = 32;
  problem.num_heads_k = 8;
  problem.head_dim = problem.head_dim_v = 128;
  problem.softmax_scale = 1 / std::sqrt(128.0);
  problem.mask = Mask::causal;
  const std::string text =
      "attention_forward dtype=bf16 batch_size=2 seqlen_q=4096 num_heads_q=32 num_heads_k=8 head_dim=128 mask=causal";
  EXPECT_EQ(to_string(problem), text);
  EXPECT_EQ(parse_problem(text), problem);
}

TEST(ProblemText, FillsInDefaults) {
  const Problem problem = parse_problem("attention_backward head_dim=100 seqlen_q=7 num_heads_q=3");
  EXPECT_EQ(problem.operation, Operation::attention_backward);
  EXPECT_EQ(problem.dtype, DType::f32);
  EXPECT_EQ(problem.batch_size, 1);
  EXPECT_EQ(problem.seqlen_k, 7);
  EXPECT_EQ(problem.num_heads_k, 3);
  EXPECT_EQ(problem.head_dim_v, 100);
  EXPECT_EQ(problem.softmax_scale, 0.1);
  EXPECT_EQ(problem.window_left, -1);
  EXPECT_EQ(to_string(problem), "attention_backward seqlen_q=7 num_heads_q=3 head_dim=100");
}

TEST(ProblemText, NamesPackedLengths) {
  const std::string text = "attention_forward layout=thd batch_size=3 max_seqlen_q=9 total_q=11 total_k=20 head_dim=64";
  const Problem problem = parse_problem(text);
  EXPECT_EQ(problem.seqlen_q, 9);
  EXPECT_EQ(problem.seqlen_k, 9);
  EXPECT_EQ(problem.total_q, 11);
  EXPECT_EQ(problem.total_k, 20);
  EXPECT_EQ(to_string(problem), text);
  EXPECT_EQ(parse_problem("attention_forward layout=thd batch_size=3 max_seqlen_q=9 head_dim=64")
                .get<AttentionProblem>()
                .total_k,
            27);
}

TEST(ProblemText, ReadsCausalTopLeft) {
  const Problem problem = parse_problem("attention_forward seqlen_q=4 head_dim=8 mask=causal_top_left");
  EXPECT_EQ(problem.mask, Mask::causal);
  EXPECT_EQ(problem.alignment, Alignment::top_left);
  EXPECT_EQ(to_string(problem), "attention_forward seqlen_q=4 head_dim=8 mask=causal alignment=top_left");
  EXPECT_EQ(parse_problem("attention_forward alignment=top_left seqlen_q=4 head_dim=8 mask=causal_top_left"), problem);
  expect_invalid("alignment: must be top_left with mask=causal_top_left (got 'bottom_right')", [] {
    (void)parse_problem("attention_forward seqlen_q=4 head_dim=8 mask=causal_top_left alignment=bottom_right");
  });
}

TEST(ProblemText, EqualMeaningsAreEqualProblems) {
  const auto same = [](const std::string& a, const std::string& b) {
    const std::string common = "attention_forward batch_size=2 seqlen_q=4 num_heads_q=2 head_dim=8 ";
    const Problem first = parse_problem(common + a), second = parse_problem(common + b);
    EXPECT_EQ(first, second) << a << " | " << b;
    EXPECT_EQ(hash_value(first), hash_value(second));
  };
  same("mask=causal window_right=0", "mask=causal");
  same("window_right=0", "mask=causal");
  same("alignment=top_left", "");
  same("seed_tensor=1", "");
  same("dropout_p=0.1", "dropout_p=0.100006103515625");
  same("dropout_p=0.000001 seed_tensor=1", "");
  same("softmax_scale=-0", "softmax_scale=0");
  same("softcap=-0", "");
  same("bias=query[b,h,q,k]", "bias=f32[b,h,q,k]");
  same("bias=f32[b,1,q,k] seqlen_k=1", "bias=f32[b,1,q,1] seqlen_k=1");
  same("deterministic=1", "");
}

TEST(ProblemText, TheDiagonalMattersToWindowsAndAlibi) {
  const Problem plain = parse_problem("attention_forward seqlen_q=4 head_dim=8");
  for (const char* option : {"mask=causal", "window_left=2", "window_right=2", "alibi_slopes=[h]"}) {
    const std::string text = std::string("attention_forward seqlen_q=4 head_dim=8 alignment=top_left ") + option;
    EXPECT_EQ(parse_problem(text).get<AttentionProblem>().alignment, Alignment::top_left) << option;
    EXPECT_NE(parse_problem(text), plain);
  }
}

/// Any valid Problem, each field often at its default and else anything it may be.
class RandomProblem {
 public:
  explicit RandomProblem(unsigned seed) : engine_(seed) {}

  Problem operator()() {
    Problem p;
    p.operation = pick<Operation>(2);
    p.dtype = static_cast<DType>(integer(1, 3));
    p.device = pick<DeviceType>(3);
    p.layout = pick<Layout>(4);
    p.batch_size = integer(0, 9);
    p.seqlen_q = integer(0, 5000);
    p.seqlen_k = maybe() ? integer(0, 5000) : p.seqlen_q;
    if (p.layout == Layout::thd) p.total_q = integer(0, 9999), p.total_k = integer(0, 9999);
    p.num_heads_k = integer(1, 12);
    p.num_heads_q = p.num_heads_k * integer(1, 4);
    p.head_dim = integer(1, 576);
    p.head_dim_v = maybe() ? integer(1, 512) : std::min<std::int64_t>(p.head_dim, 512);
    p.mask = pick<Mask>(2);
    p.alignment = pick<Alignment>(2);
    if (maybe()) p.window_left = integer(-1, 300);
    if (maybe() && p.mask == Mask::none) p.window_right = integer(-1, 300);
    p.softmax_scale = maybe() ? real(-2, 2) : operations::attention::default_softmax_scale(p.head_dim);
    if (maybe()) p.softcap = real(0.01, 50);
    if (maybe()) p.dropout_p = real(0, 0.9999999);
    p.seed_tensor = maybe();
    p.bias = pick<BiasKind>(4);
    p.bias_dims = {maybe(), maybe(), maybe(), maybe()};
    p.alibi_slopes = pick<AlibiKind>(3);
    p.sink = pick<SinkKind>(3);
    p.seqused_q = maybe(), p.seqused_k = maybe(), p.leftpad_k = maybe();
    p.deterministic = maybe(), p.batch_invariant = maybe();
    p.unaligned = p.device != DeviceType::cpu && maybe();
    p.bias_unaligned = p.device != DeviceType::cpu && maybe();
    p.operation == Operation::attention_forward ? choose_forward(p) : choose_backward(p);
    return p;
  }

 private:
  void choose_forward(Problem& p) { p.softmax_lse = maybe(); }
  void choose_backward(Problem& p) {
    p.dlse = maybe(), p.dk = maybe(), p.dv = maybe();
    p.dbias = p.bias != BiasKind::none && p.bias != BiasKind::boolean && maybe();
    p.dsink = p.sink != SinkKind::none && maybe();
    p.dq = !(p.dk || p.dv || p.dbias || p.dsink) || maybe();
  }
  bool maybe() { return integer(0, 1) == 1; }
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution(low, high)(engine_);
  }
  double real(double low, double high) { return std::uniform_real_distribution(low, high)(engine_); }
  template <typename Enum>
  Enum pick(std::int64_t count) {
    return static_cast<Enum>(integer(0, count - 1));
  }
  std::mt19937 engine_;
};

TEST(ProblemText, RoundTripsRandomProblems) {
  RandomProblem random(1);
  for (int i = 0; i < 20000; ++i) {
    const Problem raw = random();
    ASSERT_NO_THROW(validate(raw)) << to_string(raw);
    const Problem problem = operations::attention::canonical(raw);
    const std::string text = to_string(problem);
    ASSERT_NO_THROW(validate(problem)) << text;
    ASSERT_EQ(operations::attention::canonical(problem), problem) << text;
    const Problem parsed = parse_problem(text);
    ASSERT_EQ(parsed, problem) << text;
    ASSERT_EQ(hash_value(parsed), hash_value(problem)) << text;
    ASSERT_EQ(to_string(parsed), text);
    ASSERT_EQ(parse_problem(to_string(raw)), problem) << text;
  }
}

TEST(ProblemText, TakesKeysInAnyOrderAndAnyBlanks) {
  EXPECT_EQ(parse_problem("  attention_forward\tmask=causal \n head_dim=8   seqlen_q=4 "),
            parse_problem("attention_forward seqlen_q=4 head_dim=8 mask=causal"));
}

TEST(ProblemText, HashesDiffer) {
  const Problem base = parse_problem("attention_forward seqlen_q=4 head_dim=8");
  RandomProblem random(2);
  std::vector<std::size_t> hashes{hash_value(base)};
  for (int i = 0; i < 2000; ++i) hashes.push_back(hash_value(random()));
  std::sort(hashes.begin(), hashes.end());
  EXPECT_EQ(std::unique(hashes.begin(), hashes.end()), hashes.end());
}

struct BadText {
  const char *text, *sentence;
};

class BadProblemText : public testing::TestWithParam<BadText> {};

TEST_P(BadProblemText, IsQuoted) {
  expect_invalid(GetParam().sentence, [] { (void)parse_problem(GetParam().text); });
}

INSTANTIATE_TEST_SUITE_P(
    All, BadProblemText,
    testing::Values(
        BadText{"",
                "operation: must be one of attention_forward, attention_backward, kv_cache_attention, append_kv, "
                "merge, merge_backward, linear, linear_backward, route, route_backward, moe, moe_backward, quantize, "
                "dequantize (got '')"},
        BadText{"attention",
                "operation: must be one of attention_forward, attention_backward, kv_cache_attention, append_kv, "
                "merge, merge_backward, linear, linear_backward, route, route_backward, moe, moe_backward, quantize, "
                "dequantize; did you mean attention_forward? (got 'attention')"},
        BadText{"attention_forward", "seqlen_q: must be given (got no such word)"},
        BadText{"attention_forward layout=thd head_dim=8", "max_seqlen_q: must be given (got no such word)"},
        BadText{"attention_forward seqlen_q=4", "head_dim: must be given (got no such word)"},
        BadText{"attention_forward seqlen_q",
                "problem: must consist of key=value words after the operation (got "
                "'seqlen_q')"},
        BadText{"attention_forward =4", "problem: must consist of key=value words after the operation (got '=4')"},
        BadText{"attention_forward seqlen_q=", "seqlen_q: must be an integer of 64 bits (got '')"},
        BadText{"attention_forward seqlen_q=4x", "seqlen_q: must be an integer of 64 bits (got '4x')"},
        BadText{"attention_forward seqlen_q=99999999999999999999",
                "seqlen_q: must be an integer of 64 bits (got '99999999999999999999')"},
        BadText{"attention_forward seqlen_q=4 seqlen_q=4", "'seqlen_q': must be given once (got it twice)"},
        BadText{"attention_forward seqlen_q=4 head_dim=8 colour=red", "problem: unknown key (got 'colour')"},
        BadText{"attention_forward seqlen_q=4 head_dim=8 total_q=4", "total_q: requires layout=thd (got layout=bshd)"},
        BadText{"attention_forward seqlen_q=4 head_dmi=8",
                "problem: unknown key; did you mean head_dim? (got 'head_dmi')"},
        BadText{"attention_forward SeqLenQ=4 head_dim=8",
                "problem: unknown key; did you mean seqlen_q? (got 'SeqLenQ')"},
        BadText{"attention_forward seqlen=4", "problem: unknown key; did you mean seqlen_q? (got 'seqlen')"},
        BadText{"attention_forward heads=4", "problem: unknown key; did you mean num_heads_q? (got 'heads')"},
        BadText{"attention_forward batch=4", "problem: unknown key; did you mean batch_size? (got 'batch')"},
        BadText{"attention_forward scale=4", "problem: unknown key; did you mean softmax_scale? (got 'scale')"},
        BadText{"attention_forward is_causal=1", "problem: unknown key; did you mean mask=causal? (got 'is_causal')"},
        BadText{"attention_forward window=4",
                "problem: unknown key; did you mean window_left and window_right? (got 'window')"},
        BadText{"attention_forward layuot=thd max_seqlen_q=4 head_dim=8",
                "problem: unknown key; did you mean layout? (got 'layuot')"},
        BadText{"attention_forward layout=thd seqlen_q=4 head_dim=8",
                "problem: unknown key; did you mean max_seqlen_q? (got 'seqlen_q')"},
        BadText{"attention_forward colour=red", "problem: unknown key (got 'colour')"},
        BadText{"attention_forward seqlen_q=4 head_dim=8 softcap=big", "softcap: must be a number (got 'big')"},
        BadText{"attention_forward seqlen_q=4 head_dim=8 sink=yes", "sink: must be one of 0, 1, query (got 'yes')"},
        BadText{"attention_forward seqlen_q=4 head_dim=8 mask=lower",
                "mask: must be one of none, causal (got 'lower')"},
        BadText{"attention_forward layout=dsbh", "layout: must be one of bshd, sbhd, bhsd, thd (got 'dsbh')"},
        BadText{"attention_forward seqlen_q=4 head_dim=8 bias=f32",
                "bias: must be none or f32, query or bool followed by [b,h,q,k], with 1 for a broadcast one (got "
                "'f32')"},
        BadText{"attention_forward seqlen_q=4 head_dim=8 bias=f32[k,q,h,b]",
                "bias: must be none or f32, query or bool followed by [b,h,q,k], with 1 for a broadcast one (got "
                "'f32[k,q,h,b]')"},
        BadText{"attention_forward seqlen_q=4 head_dim=8 bias=f64[b,h,q,k]",
                "bias: must be one of none, f32, query, bool (got 'f64')"},
        BadText{"attention_forward seqlen_q=4 head_dim=8 "
                "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa=1",
                "problem: unknown key (got 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...')"}));

}  // namespace
}  // namespace tilewise
