// Merge's portable kernels under emulation against the reference: lists of more parts than a launch holds, stacked and
// mixed parts, rows of every width, and special values.
#include <gtest/gtest.h>

#include <string>

#include "../support/emulated_machines.hpp"
#include "../support/expect_passed.hpp"
#include "tilewise/merge.hpp"

namespace tilewise::test {
namespace {

class EmulatedMerge : public testing::TestWithParam<std::string> {
 protected:
  /// Seeds differ in strides, alignment, which rows saw nothing, and one in four in special values.
  static void check(const std::string& problem, std::uint64_t seeds) {
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      expect_passed(parse_problem(problem), GetParam(), seed);
    }
  }
};

TEST_P(EmulatedMerge, ListsOfMorePartsThanALaunchHolds) {
  for (const char* parts : {"16", "33"})
    check("merge dtype=bf16 batch_size=2 seqlen_q=5 num_heads_q=3 head_dim_v=64 sink=f32 parts=" + std::string(parts),
          8);
  check("merge_backward dtype=bf16 seqlen_q=5 num_heads_q=3 head_dim_v=64 sink=f32 dlse=1 dsink=1 parts=33", 6);
}

TEST_P(EmulatedMerge, StackedPartsOfAnyNumber) {
  for (const char* parts : {"50"}) {
    check("merge stacked=1 layout=bhsd seqlen_q=9 num_heads_q=2 head_dim_v=32 parts=" + std::string(parts), 6);
    check("merge_backward stacked=1 layout=bhsd seqlen_q=9 num_heads_q=2 head_dim_v=32 parts=" + std::string(parts), 6);
  }
}

TEST_P(EmulatedMerge, PartsOfTwoTypes) {
  check("merge dtype=f16 parts_dtype=mixed parts=5 layout=sbhd seqlen_q=7 num_heads_q=2 head_dim_v=39 sink=query", 6);
  check(
      "merge_backward dtype=f16 parts_dtype=mixed parts=5 layout=thd total_q=7 num_heads_q=2 head_dim_v=39 "
      "sink=query dsink=1",
      6);
}

TEST_P(EmulatedMerge, RowsOfEveryWidth) {
  for (const char* dim : {"1", "264", "512"}) {
    check("merge dtype=bf16 parts_dtype=f32 parts=3 seqlen_q=3 num_heads_q=2 head_dim_v=" + std::string(dim), 3);
    check("merge_backward dtype=bf16 parts_dtype=f32 parts=3 seqlen_q=3 num_heads_q=2 head_dim_v=" + std::string(dim),
          3);
  }
}

TEST_P(EmulatedMerge, SomeGradientsAlone) {
  const std::string problem = "merge_backward dtype=bf16 parts=3 seqlen_q=5 num_heads_q=2 head_dim_v=64 sink=f32";
  for (const char* wanted : {" douts=0", " dlses=0", " douts=0 dlses=0 dsink=1"}) check(problem + wanted, 3);
}

TEST_P(EmulatedMerge, WithoutRows) {
  check("merge dtype=bf16 seqlen_q=0 head_dim_v=64", 1);
  check("merge_backward dtype=bf16 seqlen_q=0 head_dim_v=64 sink=f32 dsink=1", 1);
}

TEST_P(EmulatedMerge, IsNeverChosenUnaskedAndRefusesF64) {
  for (const ExplainRow& row : explain(parse_problem("merge dtype=bf16 seqlen_q=1 head_dim_v=8")).rows) {
    if (row.implementation != GetParam()) continue;
    EXPECT_TRUE(row.accepted && !row.chosen) << row.reason;
  }
  for (const ExplainRow& row : explain(parse_problem("merge dtype=f64 seqlen_q=1 head_dim_v=8")).rows) {
    if (row.implementation != GetParam()) continue;
    EXPECT_EQ(row.reason, "does not support f64");
  }
}

TILEWISE_ON_MACHINES(EmulatedMerge, "emulation.rdna");
TILEWISE_ON_MACHINES_BY_NIGHT(EmulatedMerge, "emulation.sm80", "emulation.cdna");

}  // namespace
}  // namespace tilewise::test
