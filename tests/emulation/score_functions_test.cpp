// Functions of scores in portable kernels, on each emulated machine: both passes against the reference, with every
// other option around them, and captured tensors of every dtype.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "../support/expect_passed.hpp"
#include "verify/verify.hpp"

namespace tilewise::test {
namespace {

class ScoreFunctions : public testing::TestWithParam<std::string> {
 protected:
  static void check(const std::string& pass, const std::string& options) {
    const std::string sizes = " batch_size=2 seqlen_q=70 seqlen_k=90 num_heads_q=4 num_heads_k=2 head_dim=32 dtype=";
    const Problem problem = parse_problem("attention_" + pass + sizes + options);
    for (const bool special : {false, true}) expect_passed(problem, GetParam(), aligned_seed(special));
  }
  static void check_both(const std::string& options) {
    check("forward", options);
    check("backward", options);
  }
};

/// Some look-ups are out of range.
constexpr const char* kRelative = "score_mod=score+table0[h,clamp(q_idx-kv_idx,-8,9)+8]*tanh(score) tables=f32[4,17]";
constexpr const char* kDocuments = "mask_mod=table0[b,q_idx]==table0[b,kv_idx] tables=i32[2,80]";

TEST_P(ScoreFunctions, ModifyScores) { check_both(std::string("bf16 ") + kRelative); }

TEST_P(ScoreFunctions, HideKeys) { check_both(std::string("f16 ") + kDocuments); }

TEST_P(ScoreFunctions, HideKeysByMinusInfinity) {
  check_both("bf16 score_mod=select((kv_idx<=q_idx)|(kv_idx<h),score*0.5,-inf)");
}

TEST_P(ScoreFunctions, StandAmongAllOptions) {
  const std::string functions =
      "score_mod=score*0.75+0.125*((q_idx+b)//3%5) mask_mod=(q_idx-kv_idx)%3!=1 window_left=40 softcap=5 "
      "alibi_slopes=[h] sink=1 dropout_p=0.25 seqused_q=1 seqused_k=1 leftpad_k=1 ";
  check("forward", "bf16 bias=f32[b,h,q,k] " + functions);
  check("backward", "bf16 bias=query[1,h,q,k] dbias=1 dlse=1 dsink=1 deterministic=1 " + functions);
}

/// What a boolean bias hides stays hidden, whatever a function makes of it.
TEST_P(ScoreFunctions, LeaveHiddenWhatABiasHides) { check_both("bf16 bias=bool[b,h,q,k] score_mod=max(score,-1.0)"); }

TEST_P(ScoreFunctions, LookUpElementsOfEveryDtype) {
  check("forward",
        "bf16 score_mod=select(table6[kv_idx],score,score*0.5)+table0[h]+table1[q_idx]*table2[b,h]+table3[kv_idx//7]+"
        "0.25*table4[q_idx,kv_idx]+0.5*table5[0,b,h,q_idx//64]+0.125*min(table7[kv_idx],3) "
        "tables=bf16[4],f16[70],f64[2,4],fp8_e4m3[12],fp8_e5m2[64,90],u8[1,2,4,2],bool[90],i64[80]");
}

TEST_P(ScoreFunctions, HoldWhereKeysAreSplit) {
  const Problem problem =
      parse_problem("attention_forward dtype=bf16 seqlen_q=1 seqlen_k=400 num_heads_q=4 num_heads_k=1 head_dim=64 " +
                    std::string("score_mod=score-table0[h]*abs(q_idx-kv_idx) mask_mod=kv_idx%5!=h tables=f32[4]"));
  expect_passed(problem, GetParam(), aligned_seed(false));
}

TEST_P(ScoreFunctions, CountWithinPackedSequences) {
  for (const std::string pass : {"forward", "backward"}) {
    const Problem problem = parse_problem("attention_" + pass +
                                          " dtype=f16 layout=thd batch_size=3 max_seqlen_q=70 max_seqlen_k=90 "
                                          "total_q=140 total_k=180 num_heads_q=2 head_dim=32 mask=causal "
                                          "score_mod=score+0.01*q_idx*(kv_idx%4)-b");
    expect_passed(problem, GetParam(), aligned_seed(false));
  }
}

/// A table without elements reads as 0, and nothing is read.
TEST_P(ScoreFunctions, TakeEmptyTables) {
  check("forward", "bf16 score_mod=score+table0[h,q_idx]+table1[kv_idx] tables=f32[4,0],i32[0]");
}

// Of the machines with WMMA one: the others differ in products, which no function changes.
INSTANTIATE_TEST_SUITE_P(Machines, ScoreFunctions,
                         testing::Values("emulation.sm80", "emulation.cdna", "emulation.rdna"),
                         [](const auto& info) { return info.param.substr(info.param.find('.') + 1); });

}  // namespace
}  // namespace tilewise::test
