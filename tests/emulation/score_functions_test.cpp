// Functions of scores on each emulated machine: both passes against the reference, with every
// other option around them, and captured tensors of every dtype.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "../support/emulated_machines.hpp"
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

/// Bounds of look-ups decide whole tiles: of documents of 40, among them one that comes twice, and where all is beyond
/// the table.
TEST_P(ScoreFunctions, HideTilesByTheirBounds) {
  check_both("bf16 mask_mod=(table0[b,q_idx//40]==table0[b,kv_idx//40])&(kv_idx<=q_idx+20) tables=i32[2,3]");
  check("forward", "f16 mask_mod=(table0[kv_idx-60]<1)|table1[q_idx] tables=i64[20],bool[70]");
}

/// Blocks that are no tiles of any kernel, with a mask_mod and without, for each head or for all.
TEST_P(ScoreFunctions, HideBlocksOfAMask) {
  check_both(std::string("bf16 block_mask=16x48[b,h]+full ") + kDocuments);
  check_both("f16 block_mask=48x16[1,1]+full mask_mod=(q_idx-kv_idx)%3!=1");
  check_both("bf16 block_mask=32x32[b,1] mask=causal score_mod=score*0.5");
}

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

/// By elements that many scores look up, and by those of one. Hopper's kernels refuse them by name.
TEST_P(ScoreFunctions, GiveTablesGradients) {
  const std::string problem =
      "attention_backward dtype=bf16 batch_size=2 seqlen_q=70 seqlen_k=90 num_heads_q=4 num_heads_k=2 head_dim=32 ";
  const std::string first =
      "mask=causal softcap=5 score_mod=score*table1[b]+table0[h,clamp(q_idx-kv_idx,-8,9)+8]*tanh(score) "
      "mask_mod=kv_idx%5!=h tables=f32[4,17],bf16[2] dtables=3";
  const std::string second =
      "dropout_p=0.25 seqused_k=1 dq=0 dk=0 dv=0 score_mod=score+table0[b,h,q_idx,kv_idx]+table1[kv_idx+40] "
      "tables=f16[2,4,70,90],f64[100] dtables=3";
  for (const std::string& words : {first, second}) {
    if (GetParam() == "emulation.sm90") {
      const verify::Report report = verify::check_implementation(parse_problem(problem + words), GetParam(), 0);
      EXPECT_EQ(report.status, verify::Status::refused);
      EXPECT_NE(report.message.find("dtables"), std::string::npos) << report.message;
      continue;
    }
    for (const bool special : {false, true})
      expect_passed(parse_problem(problem + words), GetParam(), aligned_seed(special));
  }
}

/// q_idx is the key that a query stands at: in pages and in contiguous caches, decoding and among new keys, where keys
/// are split, and beside scales of fp8, which come first. Hopper's step has no fp8; hopper_functions_test.cpp has the
/// rest.
TEST_P(ScoreFunctions, CountPositionsOfACache) {
  const std::string step = "kv_cache_attention dtype=bf16 batch_size=3 num_heads_q=4 num_heads_k=2 head_dim=64 ";
  const std::string pages = "page_size=16 num_pages=40 max_pages_per_seq=12 cache_seqlens=1 softmax_lse=1 ";
  const std::string functions =
      "score_mod=score-table0[h]*abs(q_idx-kv_idx)+table1[b,clamp(q_idx-kv_idx,-2,20)+2] "
      "mask_mod=(kv_idx<=q_idx)&((q_idx-kv_idx)%5!=h) tables=f32[4],bf16[3,23]";
  if (GetParam() == "emulation.sm90") {
    const verify::Report report = verify::check_implementation(
        parse_problem(step + pages + "seqlen_q=1 cache_dtype=fp8_e4m3 " + functions), GetParam(), 0);
    EXPECT_EQ(report.status, verify::Status::refused);
    EXPECT_NE(report.message.find("fp8"), std::string::npos) << report.message;
    return;
  }
  for (const char* words :
       {"seqlen_q=1 ", "seqlen_q=5 append=1 mask=causal rotary_dim=32 ", "seqlen_q=1 append=1 num_splits=3 sink=1 ",
        "seqlen_q=2 cache_dtype=fp8_e4m3 scales=token append=1 ", "seqlen_q=1 cache_dtype=fp8_e4m3 softcap=5 "}) {
    for (std::uint64_t seed = 0; seed < 2; ++seed)
      expect_passed(parse_problem(step + pages + words + functions), GetParam(), seed);
  }
  expect_passed(parse_problem(step + "capacity=90 cache_seqlens=1 cache_leftpad=1 seqlen_q=40 " + functions),
                GetParam(), 0);
}

/// Likewise, of sequences of their own and of all together, whose blocks are no tiles and no pages.
TEST_P(ScoreFunctions, HideBlocksOfACache) {
  if (GetParam() == "emulation.sm90") return;  // see hopper_functions_test.cpp
  const std::string step = "kv_cache_attention dtype=bf16 batch_size=2 num_heads_q=4 num_heads_k=2 head_dim=64 ";
  for (const char* words :
       {"page_size=16 num_pages=40 max_pages_per_seq=12 cache_seqlens=1 append=1 seqlen_q=3 softmax_lse=1 "
        "block_mask=32x48[b,h]+full mask_mod=(q_idx-kv_idx)%3!=1",
        "page_size=16 num_pages=40 max_pages_per_seq=24 cache_seqlens=1 seqlen_q=1 num_splits=3 "
        "block_mask=16x64[1,1] score_mod=score*0.5",
        "capacity=90 cache_seqlens=1 cache_leftpad=1 seqlen_q=40 mask=causal block_mask=16x16[b,1]+full"})
    expect_passed(parse_problem(step + words), GetParam(), 0);
}

/// A table without elements reads as 0, and nothing is read.
TEST_P(ScoreFunctions, TakeEmptyTables) {
  check("forward", "bf16 score_mod=score+table0[h,q_idx]+table1[kv_idx] tables=f32[4,0],i32[0]");
}

// Of the machines with WMMA one: the others differ in products, which no function changes.
TILEWISE_ON_MACHINES(ScoreFunctions, "emulation.sm90", "emulation.cdna");
TILEWISE_ON_MACHINES_BY_NIGHT(ScoreFunctions, "emulation.sm80", "emulation.rdna");

}  // namespace
}  // namespace tilewise::test
