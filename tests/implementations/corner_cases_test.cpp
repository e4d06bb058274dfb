// Problems picked by hand: the edges of every dimension and option, in every dtype. Rows that compile kernels see them
// in few configurations: one without options, one with all of them.
#include <array>
#include <span>
#include <string_view>

#include "core/message.hpp"
#include "implementation_test.hpp"

namespace tilewise::test {
namespace {

using core::concat;

/// Without operation and dtype; those of one pass alone are marked by their options.
constexpr std::string_view kBothPasses[] = {
    // Empty and single-row sequences.
    "batch_size=0 seqlen_q=5 num_heads_q=2 head_dim=16",
    "batch_size=2 seqlen_q=0 seqlen_k=5 num_heads_q=2 head_dim=16",
    "batch_size=2 seqlen_q=5 seqlen_k=0 num_heads_q=2 head_dim=16 sink=1",
    "batch_size=2 seqlen_q=5 seqlen_k=0 num_heads_q=2 head_dim=16",
    "seqlen_q=0 seqlen_k=0 head_dim=16",
    "seqlen_q=1 head_dim=64",
    "seqlen_q=1 seqlen_k=2049 num_heads_q=8 num_heads_k=2 head_dim=64",
    "seqlen_q=3000 seqlen_k=1 head_dim=16",
    "layout=thd batch_size=4 max_seqlen_q=0 max_seqlen_k=3 total_q=0 total_k=9 head_dim=16",
    "layout=thd batch_size=4 max_seqlen_q=3 max_seqlen_k=0 total_q=9 total_k=0 head_dim=16",
    "layout=thd batch_size=0 max_seqlen_q=0 max_seqlen_k=0 total_q=3 total_k=2 head_dim=16",
    "layout=thd batch_size=40 max_seqlen_q=9 max_seqlen_k=7 total_q=100 total_k=90 num_heads_q=2 head_dim=32 "
    "mask=causal",
    // Rows that belong to no sequence, cleared.
    "layout=thd batch_size=0 max_seqlen_q=0 max_seqlen_k=0 total_q=3 total_k=2 head_dim=16 clear_rest=1",
    "layout=thd batch_size=2 max_seqlen_q=5 max_seqlen_k=9 total_q=300 total_k=280 num_heads_q=2 num_heads_k=1 "
    "head_dim=24 clear_rest=1",
    // Rows that see nothing, in blocks and alone.
    "seqlen_q=200 seqlen_k=3 num_heads_q=2 head_dim=32 mask=causal",
    "seqlen_q=200 seqlen_k=3 num_heads_q=2 head_dim=32 mask=causal sink=1",
    "seqlen_q=3 seqlen_k=300 num_heads_q=2 head_dim=32 mask=causal alignment=top_left",
    "seqlen_q=150 seqlen_k=150 num_heads_q=2 head_dim=32 window_left=0 window_right=0",
    "seqlen_q=150 seqlen_k=40 head_dim=32 window_left=2 window_right=1 alignment=top_left",
    "seqlen_q=40 seqlen_k=333 head_dim=32 window_left=5 window_right=17",
    "seqlen_q=70 seqlen_k=260 head_dim=32 window_left=2147483647 window_right=2147483647",
    "seqlen_q=70 head_dim=32 bias=bool[1,1,q,k] mask=causal",
    // Tile borders.
    "seqlen_q=63 seqlen_k=65 num_heads_q=2 head_dim=48 mask=causal",
    "seqlen_q=64 seqlen_k=64 num_heads_q=2 head_dim=64 mask=causal",
    "seqlen_q=65 seqlen_k=127 num_heads_q=2 head_dim=48 mask=causal",
    "seqlen_q=129 seqlen_k=257 num_heads_q=2 head_dim=32 mask=causal",
    "seqlen_q=255 seqlen_k=513 head_dim=24 window_left=100",
    // Scales, caps, slopes.
    "seqlen_q=33 head_dim=16 softmax_scale=0",
    "seqlen_q=33 head_dim=16 softmax_scale=-0.5",
    "seqlen_q=33 head_dim=16 softmax_scale=10",
    "seqlen_q=33 head_dim=16 softmax_scale=-10 softcap=3",
    "seqlen_q=33 head_dim=16 softcap=0.01",
    "seqlen_q=33 head_dim=16 softcap=10000",
    "seqlen_q=1 seqlen_k=3000 num_heads_q=4 num_heads_k=2 head_dim=33 head_dim_v=17 sink=query softcap=3",
    "seqlen_q=33 seqlen_k=40 num_heads_q=4 num_heads_k=2 head_dim=32 sink=query",
    "seqlen_q=33 seqlen_k=70 num_heads_q=4 head_dim=16 alibi_slopes=[h] mask=causal",
    "batch_size=3 seqlen_q=33 seqlen_k=20 num_heads_q=2 head_dim=16 alibi_slopes=[b,h] alignment=top_left",
    // Heads.
    "seqlen_q=5 seqlen_k=90 num_heads_q=32 num_heads_k=1 head_dim=32",
    "seqlen_q=2 seqlen_k=300 num_heads_q=24 num_heads_k=8 head_dim=64 mask=causal",
    "seqlen_q=1 seqlen_k=300 num_heads_q=20 num_heads_k=1 head_dim=576 head_dim_v=512",
    "seqlen_q=100 num_heads_q=7 num_heads_k=1 head_dim=24 mask=causal",
    "seqlen_q=3 seqlen_k=700 num_heads_q=4 head_dim=16 mask_mod=kv_idx//256==h",  // each sees other keys, one none
    // Everything dropped, nearly nothing dropped, a seed on the device.
    "seqlen_q=40 seqlen_k=5 head_dim=16 dropout_p=0.9999847412109375",
    "seqlen_q=40 seqlen_k=100 head_dim=16 dropout_p=0.0000152587890625 seed_tensor=1",
    "batch_size=2 seqlen_q=40 seqlen_k=333 num_heads_q=3 head_dim=16 dropout_p=0.5 mask=causal leftpad_k=1 seqused_k=1",
    "seqlen_q=2 seqlen_k=2500 num_heads_q=3 head_dim=16 dropout_p=0.5",
    // Used parts.
    "batch_size=6 seqlen_q=70 seqlen_k=150 head_dim=32 seqused_q=1 seqused_k=1 leftpad_k=1 mask=causal",
    "batch_size=6 seqlen_q=1 seqlen_k=1100 num_heads_q=8 num_heads_k=2 head_dim=32 seqused_k=1 leftpad_k=1",
    "layout=thd batch_size=6 max_seqlen_q=70 max_seqlen_k=90 total_q=300 total_k=350 head_dim=32 seqused_q=1 "
    "seqused_k=1 leftpad_k=1 window_left=9",
    "batch_size=3 seqlen_q=50 seqlen_k=140 num_heads_q=2 head_dim=32 leftpad_k=1 bias=f32[b,h,q,k] sink=1",
    // Every broadcast of bias.
    "batch_size=2 seqlen_q=35 seqlen_k=70 num_heads_q=3 head_dim=16 bias=f32[1,1,1,1]",
    "batch_size=2 seqlen_q=35 seqlen_k=70 num_heads_q=3 head_dim=16 bias=f32[b,1,1,k]",
    "batch_size=2 seqlen_q=35 seqlen_k=70 num_heads_q=3 head_dim=16 bias=f32[1,h,q,1]",
    "batch_size=2 seqlen_q=35 seqlen_k=70 num_heads_q=3 head_dim=16 bias=bool[b,1,1,k]",
    "batch_size=2 seqlen_q=1 seqlen_k=1300 num_heads_q=3 head_dim=16 bias=bool[b,1,1,k]",
};

/// Gradients asked for one by one, and those of options.
constexpr std::string_view kBackwardOnly[] = {
    "seqlen_q=50 seqlen_k=70 num_heads_q=2 head_dim=32 dk=0 dv=0",
    "seqlen_q=50 seqlen_k=70 num_heads_q=2 head_dim=32 dq=0 dv=0",
    "seqlen_q=50 seqlen_k=70 num_heads_q=2 head_dim=32 dq=0 dk=0",
    "batch_size=2 seqlen_q=50 seqlen_k=700 num_heads_q=2 head_dim=32 dlse=1 sink=query dsink=1 softcap=2 "
    "bias=query[1,h,1,k] dbias=1",
    "batch_size=2 seqlen_q=50 seqlen_k=70 num_heads_q=4 num_heads_k=2 head_dim=32 sink=query dsink=1",
    "batch_size=2 seqlen_q=50 seqlen_k=70 num_heads_q=4 num_heads_k=2 head_dim=32 dlse=1 sink=1 dsink=1 mask=causal",
    "batch_size=2 seqlen_q=50 seqlen_k=3 num_heads_q=2 head_dim=32 dlse=1 sink=1 dsink=1 mask=causal dq=0 dk=0 dv=0",
    "batch_size=2 seqlen_q=50 seqlen_k=70 num_heads_q=4 num_heads_k=2 head_dim=32 bias=f32[b,h,q,k] dbias=1",
    "batch_size=2 seqlen_q=50 seqlen_k=70 num_heads_q=4 num_heads_k=2 head_dim=32 bias=f32[1,1,q,k] dbias=1 softcap=1",
    "batch_size=3 seqlen_q=50 seqlen_k=70 num_heads_q=2 head_dim=32 bias=f32[1,h,1,k] dbias=1 leftpad_k=1 seqused_k=1",
    "batch_size=2 seqlen_q=50 seqlen_k=70 num_heads_q=2 head_dim=32 bias=f32[b,1,q,1] dbias=1 dropout_p=0.3",
    "batch_size=2 seqlen_q=50 seqlen_k=70 num_heads_q=2 head_dim=32 bias=f32[1,1,1,1] dbias=1 dq=0 dk=0 dv=0",
    "batch_size=2 seqlen_q=0 seqlen_k=7 num_heads_q=2 head_dim=32 bias=f32[1,h,1,k] dbias=1 sink=1 dsink=1",
    "batch_size=0 seqlen_q=4 seqlen_k=7 num_heads_q=2 head_dim=32 bias=f32[1,h,1,k] dbias=1 sink=1 dsink=1",
    "layout=thd batch_size=5 max_seqlen_q=40 max_seqlen_k=60 total_q=120 total_k=200 num_heads_q=2 head_dim=32 "
    "bias=f32[b,h,q,k] dbias=1 leftpad_k=1 dlse=1",
};

/// Of one dtype. What takes longest, the reference's results, is had once for all rows of the CPU.
class CornerCases : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    for (const std::string& name : names_but_reference()) {
      const std::vector<DType> dtypes = dtypes_of(implementation_named(name));
      const bool takes_it = std::ranges::find(dtypes, GetParam()) != dtypes.end();
      if (takes_it && refusal_of(name).empty()) rows_.push_back(name);
    }
    ASSERT_FALSE(rows_.empty()) << to_string(GetParam());
  }
  void check(std::string_view operation, std::string_view text, std::uint64_t seeds = 1) const {
    const Problem problem = parse_problem(concat(operation, " dtype=", to_string(GetParam()), " ", text));
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      const verify::Checker checker(problem, seed);
      for (const std::string& row : rows_) EXPECT_EQ(checker.check(row).to_string(), "ok");
    }
  }

 private:
  std::vector<std::string> rows_;
};

TEST_P(CornerCases, Forward) {
  for (const std::string_view text : kBothPasses) check("attention_forward", text, 2);
}

TEST_P(CornerCases, ForwardWithoutLse) {
  check("attention_forward", "seqlen_q=70 seqlen_k=90 num_heads_q=2 head_dim=32 softmax_lse=0");
  check("attention_forward", "seqlen_q=1 seqlen_k=2100 num_heads_q=2 head_dim=32 softmax_lse=0 seqused_q=1");
}

TEST_P(CornerCases, Backward) {
  for (const std::string_view text : kBothPasses) check("attention_backward", text);
  for (const std::string_view text : kBackwardOnly) check("attention_backward", text);
}

TEST_P(CornerCases, EveryHeadDim) {
  constexpr std::array kPairs{std::array{1, 1},    std::array{1, 512},   std::array{7, 7},     std::array{15, 33},
                              std::array{63, 63},  std::array{64, 64},   std::array{65, 65},   std::array{96, 80},
                              std::array{127, 1},  std::array{128, 128}, std::array{192, 128}, std::array{256, 256},
                              std::array{257, 31}, std::array{511, 511}, std::array{576, 512}, std::array{575, 3}};
  for (const auto& [head_dim, head_dim_v] : kPairs) {
    const std::string dims = " head_dim=" + std::to_string(head_dim) + " head_dim_v=" + std::to_string(head_dim_v);
    check("attention_forward", "seqlen_q=19 seqlen_k=37 num_heads_q=2 mask=causal" + dims);
    check("attention_forward", "seqlen_q=1 seqlen_k=37 num_heads_q=2" + dims);
    check("attention_backward", "seqlen_q=19 seqlen_k=37 num_heads_q=2 mask=causal" + dims);
  }
}

INSTANTIATE_TEST_SUITE_P(Table, CornerCases, testing::Values(DType::f32, DType::bf16, DType::f16, DType::f64),
                         [](const auto& info) { return std::string(to_string(info.param)); });

// No row of 23 elements starts on 16 bytes: one kernel for all placements. A window is given everywhere.
constexpr std::string_view kPlain = "dtype=bf16 head_dim=23 ";
constexpr std::string_view kFull =
    "dtype=bf16 head_dim=23 num_heads_q=4 num_heads_k=2 softcap=4 alibi_slopes=[h] sink=1 seqused_k=1 ";

constexpr std::string_view kSizes[] = {
    "batch_size=0 seqlen_q=5 num_heads_q=2 window_left=9",
    "batch_size=2 seqlen_q=0 seqlen_k=5 num_heads_q=2 window_left=9",
    "batch_size=2 seqlen_q=70 seqlen_k=0 num_heads_q=2 mask=causal",
    "seqlen_q=300 seqlen_k=1 window_left=300",
    "seqlen_q=200 seqlen_k=3 num_heads_q=2 mask=causal",
    "seqlen_q=70 seqlen_k=200 num_heads_q=2 mask=causal alignment=top_left",
    "seqlen_q=150 seqlen_k=150 num_heads_q=2 window_left=0 window_right=0",
    "seqlen_q=150 seqlen_k=40 window_left=2 window_right=1 alignment=top_left",
    "seqlen_q=70 seqlen_k=160 window_left=2147483647 window_right=2147483646",
    "seqlen_q=127 seqlen_k=63 num_heads_q=2 mask=causal",
    "seqlen_q=128 seqlen_k=64 num_heads_q=2 mask=causal",
    "seqlen_q=129 seqlen_k=65 num_heads_q=2 mask=causal",
    "batch_size=4 seqlen_q=70 seqlen_k=257 num_heads_q=2 window_left=100",
    "seqlen_q=100 num_heads_q=7 num_heads_k=1 mask=causal",
};
/// Rows of few queries, of heads that share a tile or not.
constexpr std::string_view kFewQueries[] = {
    "seqlen_q=1 seqlen_k=1 num_heads_q=2 num_heads_k=1 window_left=9",
    "seqlen_q=1 seqlen_k=33 num_heads_q=8 num_heads_k=2 window_left=40",
    "seqlen_q=3 seqlen_k=64 num_heads_q=4 num_heads_k=1 mask=causal",
    "seqlen_q=2 seqlen_k=32 num_heads_q=8 num_heads_k=1 mask=causal alignment=top_left",
    "seqlen_q=1 seqlen_k=1025 num_heads_q=8 num_heads_k=1 window_left=2000",
    "seqlen_q=2 seqlen_k=700 num_heads_q=4 num_heads_k=1 mask=causal",
    "seqlen_q=2 seqlen_k=700 num_heads_q=4 num_heads_k=1 window_left=3",
};
constexpr std::string_view kOptions[] = {
    "batch_size=2 seqlen_q=70 seqlen_k=0 window_left=9 bias=f32[b,h,q,k] dropout_p=0.25",
    "layout=thd batch_size=4 max_seqlen_q=3 max_seqlen_k=0 total_q=9 total_k=0 window_left=9 bias=f32[b,1,1,k] "
    "dropout_p=0.25",
    "layout=thd batch_size=6 max_seqlen_q=70 max_seqlen_k=90 total_q=300 total_k=350 seqused_q=1 leftpad_k=1 "
    "window_left=9 bias=f32[b,h,q,k] dropout_p=0.25",
    "batch_size=2 seqlen_q=70 seqlen_k=80 softmax_scale=0 window_left=60 bias=f32[1,1,1,1] dropout_p=0.25",
    "batch_size=2 seqlen_q=70 seqlen_k=80 softmax_scale=-10 mask=causal bias=f32[b,1,1,k] dropout_p=0.25",
    "batch_size=2 seqlen_q=70 seqlen_k=40 mask=causal bias=f32[1,h,q,1] dropout_p=0.9999847412109375",
    "batch_size=2 seqlen_q=70 seqlen_k=100 mask=causal alignment=top_left bias=f32[1,1,q,k] "
    "dropout_p=0.0000152587890625 seed_tensor=1",
};

class CornerCaseSample : public ImplementationTest {
 protected:
  void check_all(std::span<const std::string_view> texts, const std::string& words) const {
    for (const std::string_view text : texts) {
      const verify::Report report =
          verify::check_implementation(parse_problem(words + std::string(text)), GetParam(), 1);
      EXPECT_EQ(report.to_string(), "ok");
    }
  }
};

TEST_P(CornerCaseSample, Forward) {
  check_all(kSizes, concat("attention_forward ", kPlain));
  check_all(kFewQueries, concat("attention_forward ", kPlain));
  check_all(kOptions, concat("attention_forward ", kFull));
}

TEST_P(CornerCaseSample, Backward) {
  check_all(kSizes, concat("attention_backward ", kPlain));
  check_all(kOptions, concat("attention_backward dbias=1 dsink=1 dlse=1 ", kFull));
}

/// Gradients asked for one by one are kernels of their own.
TEST_P(CornerCaseSample, SingleGradients) {
  for (const std::string_view text : {"dk=0 dv=0", "dq=0 dv=0", "dq=0 dk=0"})
    check_all(std::array{std::string_view("seqlen_q=70 seqlen_k=80 num_heads_q=2 mask=causal")},
              concat("attention_backward ", kPlain, text, " "));
}

TILEWISE_FOR_EVERY_COMPILED_IMPLEMENTATION(CornerCaseSample);

}  // namespace
}  // namespace tilewise::test
