// Merge's problem: its text, every way a text can be wrong, the normal form, and what it asks of implementations.
#include <algorithm>

#include "merge_support.hpp"

namespace tilewise {
namespace {

using operations::merge::Feature, operations::merge::FeatureSet;
using test::expect_error, test::expect_invalid;

MergeProblem problem_of(const std::string& text) { return parse_problem(text); }

TEST(MergeText, PrintsTheExampleOfTheInterface) {
  MergeProblem problem;
  problem.dtype = DType::bf16;
  problem.parts_dtype = PartsDType::bf16;
  problem.parts = 4;
  problem.batch_size = 2;
  problem.seqlen_q = 4096;
  problem.num_heads_q = 32;
  problem.head_dim_v = 128;
  problem.sink = MergeSink::f32;
  const std::string text = "merge dtype=bf16 parts=4 batch_size=2 seqlen_q=4096 num_heads_q=32 head_dim_v=128 sink=f32";
  EXPECT_EQ(to_string(problem), text);
  EXPECT_EQ(problem_of(text), problem);
}

TEST(MergeText, FillsInDefaults) {
  const MergeProblem problem = problem_of("merge_backward dtype=f16 layout=thd total_q=7 head_dim_v=9 dlse=1 douts=0");
  EXPECT_EQ(problem.pass, MergePass::merge_backward);
  EXPECT_EQ(problem.parts_dtype, PartsDType::f16);
  EXPECT_EQ(problem.parts, 2);
  EXPECT_EQ(problem.batch_size, 1);
  EXPECT_EQ(problem.seqlen_q, 7);
  EXPECT_TRUE(problem.dlse && !problem.douts && problem.dlses && !problem.dsink);
  EXPECT_EQ(to_string(problem), "merge_backward dtype=f16 layout=thd total_q=7 head_dim_v=9 dlse=1 douts=0");
}

TEST(MergeText, ASinkOfTheDtypeOfOutIsF32WhereOutIs) {
  EXPECT_EQ(to_string(problem_of("merge seqlen_q=1 head_dim_v=2 sink=query")),
            "merge seqlen_q=1 head_dim_v=2 sink=f32");
  EXPECT_EQ(problem_of("merge dtype=bf16 seqlen_q=1 head_dim_v=2 sink=query").sink, MergeSink::query);
  EXPECT_EQ(problem_of("merge dtype=f64 seqlen_q=1 head_dim_v=2 sink=f32").sink, MergeSink::f32);
}

struct BadText {
  const char *text, *sentence;
};
class BadMergeText : public testing::TestWithParam<BadText> {};

TEST_P(BadMergeText, IsRefused) {
  expect_invalid(GetParam().sentence, [] { (void)parse_problem(GetParam().text); });
}

INSTANTIATE_TEST_SUITE_P(
    All, BadMergeText,
    testing::Values(
        BadText{"merge seqlen_q=1", "head_dim_v: must be given (got no such word)"},
        BadText{"merge head_dim_v=1", "seqlen_q: must be given (got no such word)"},
        BadText{"merge layout=thd seqlen_q=1 head_dim_v=1", "seqlen_q: excludes layout=thd (got layout=thd)"},
        BadText{"merge layout=thd total_q=1 batch_size=2 head_dim_v=1",
                "batch_size: excludes layout=thd (got layout=thd)"},
        BadText{"merge total_q=1 head_dim_v=1", "total_q: requires layout=thd (got layout=bshd)"},
        BadText{"merge seqlen_q=1 head_dim_v=1 part=2", "problem: unknown key; did you mean parts? (got 'part')"},
        BadText{"merge seqlen_q=1 head_dim_v=1 mask=causal", "problem: unknown key (got 'mask')"},
        BadText{"merge seqlen_q=1 head_dim_v=513", "out: head_dim_v must be 1 to 512 (got 513)"},
        BadText{"merge seqlen_q=1 head_dim_v=0", "out: head_dim_v must be 1 to 512 (got 0)"},
        BadText{"merge seqlen_q=-1 head_dim_v=1", "out: seqlen_q must be >= 0 (got -1)"},
        BadText{"merge seqlen_q=1 head_dim_v=1 parts=0", "parts: must be >= 1 (got 0)"},
        BadText{"merge seqlen_q=1 head_dim_v=1 batch_size=4294967296",
                "out: batch_size must be <= 2147483647 (got 4294967296)"},
        BadText{"merge seqlen_q=2000000000 batch_size=2000000000 head_dim_v=512",
                "outs: must have less than 2^60 elements (got 2 * 2000000000 * 2000000000 * 1 * 512)"},
        BadText{"merge seqlen_q=1 head_dim_v=1 sink=1", "sink: must be one of none, f32, query (got '1')"},
        BadText{"merge seqlen_q=1 head_dim_v=1 parts_dtype=bf16", "parts_dtype: must be f32 with dtype=f32 (got bf16)"},
        BadText{"merge dtype=f64 seqlen_q=1 head_dim_v=1 parts_dtype=f32",
                "parts_dtype: must be f64 with dtype=f64 (got f32)"},
        BadText{"merge dtype=bf16 seqlen_q=1 head_dim_v=1 parts_dtype=f16",
                "parts_dtype: must be bf16, f32 or mixed with dtype=bf16 (got f16)"},
        BadText{"merge dtype=bf16 seqlen_q=1 head_dim_v=1 parts_dtype=mixed parts=1",
                "parts_dtype: mixed requires parts >= 2 (got 1)"},
        BadText{"merge dtype=bf16 seqlen_q=1 head_dim_v=1 parts_dtype=mixed stacked=1",
                "parts_dtype: mixed excludes stacked, one tensor has one dtype (got both)"},
        BadText{"merge seqlen_q=1 head_dim_v=1 dlse=1", "dlse: belongs to merge_backward (got it in merge)"},
        BadText{"merge seqlen_q=1 head_dim_v=1 douts=0", "douts: belongs to merge_backward (got it in merge)"},
        BadText{"merge seqlen_q=1 head_dim_v=1 dlses=0", "dlses: belongs to merge_backward (got it in merge)"},
        BadText{"merge seqlen_q=1 head_dim_v=1 sink=f32 dsink=1", "dsink: belongs to merge_backward (got it in merge)"},
        BadText{"merge_backward seqlen_q=1 head_dim_v=1 softmax_lse=0",
                "softmax_lse: belongs to merge (got it in merge_backward)"},
        BadText{"merge_backward seqlen_q=1 head_dim_v=1 dsink=1", "dsink: requires sink (got none)"},
        BadText{"merge_backward seqlen_q=1 head_dim_v=1 douts=0 dlses=0",
                "douts: at least one of douts, dlses and dsink must be given (got none)"}));

TEST(MergeText, OtherDtypesAreErrorsOfType) {
  expect_error(ErrorCode::invalid_type, "out: dtype must be f32, bf16, f16 or f64 (got i32)",
               [] { (void)parse_problem("merge dtype=i32 seqlen_q=1 head_dim_v=1"); });
}

TEST(MergeFeatures, EachFieldAsksForItsOwn) {
  const auto asked = [](const std::string& words) {
    const MergeProblem problem = problem_of(words + " seqlen_q=4 head_dim_v=8");
    return operations::merge::to_string(operations::merge::required_features(problem));
  };
  EXPECT_EQ(asked("merge"), "forward, f32");
  EXPECT_EQ(asked("merge_backward dtype=f16"), "backward, f16");
  EXPECT_EQ(asked("merge dtype=bf16 parts_dtype=f32"), "forward, bf16, f32_parts");
  EXPECT_EQ(asked("merge dtype=bf16 parts_dtype=mixed"), "forward, bf16, mixed_parts");
  EXPECT_EQ(asked("merge dtype=f64 stacked=1 sink=query"), "forward, f64, stacked, sink");
  EXPECT_EQ(asked("merge_backward sink=f32 dlse=1 dsink=1"), "backward, f32, sink, dlse, dsink");
  EXPECT_EQ(asked("merge_backward dlses=0"), "backward, f32");
  const MergeProblem packed = problem_of("merge layout=thd total_q=4 head_dim_v=8");
  EXPECT_TRUE(operations::merge::required_features(packed).contains(Feature::packed));
}

TEST(MergeExplain, ShowsEveryRowOfMergeAlone) {
  const Explanation explanation = explain(parse_problem("merge seqlen_q=64 num_heads_q=8 head_dim_v=64"));
  for (const std::string& name : test::merge_rows()) {
    EXPECT_TRUE(std::ranges::any_of(explanation.rows, [&](const ExplainRow& row) {
      return row.implementation == name;
    })) << name;
  }
  for (const ExplainRow& row : explanation.rows) EXPECT_NE(row.implementation, "cpu.avx2");
  EXPECT_EQ(plan(explanation.problem).implementation(), "cpu.generic");
  EXPECT_EQ(plan(explanation.problem, {"reference"}).implementation(), "reference");
}

}  // namespace
}  // namespace tilewise
