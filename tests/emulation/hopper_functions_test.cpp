// Functions of scores in Hopper's kernels on the emulated machine: tiles that mask_mod hides or leaves whole, wherever
// they lie, tiles of each kind, and what stands beside functions.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "hopper_paths.hpp"

namespace tilewise::test {
namespace {

const std::string kTable = " batch_invariant=1", kFew = " num_heads_q=2 seqlen_q=300 seqlen_k=400";
const std::string kCausal = " mask_mod=kv_idx<=q_idx",
                  kDocuments = " mask_mod=(table0[b,q_idx]==table0[b,kv_idx])&(kv_idx<=q_idx) tables=i32[2,400]",
                  kRelative = " score_mod=score+table0[h,clamp(q_idx-kv_idx,-8,9)+8] tables=f32[2,17]";

TEST(HopperFunctions, HideTilesBehindTheDiagonal) {
  check("192x64 tiles", "dtype=bf16 head_dim=128" + kFew + kCausal + kTable);
  check("192x96 tiles", "dtype=bf16 head_dim=64" + kFew + kCausal + kTable);
  check("192x96 tiles", "dtype=f16 head_dim=80" + kFew + kCausal + kTable);
  check("128x64 tiles, 2 warpgroups, 2 stages", "dtype=bf16 head_dim=256" + kFew + kCausal + kTable);
  check("192x64 tiles", "dtype=bf16 head_dim=128" + kFew + kCausal + kTable, true);
}

/// Stripes of keys that nobody sees, of one tile or of many, and rows that see nothing.
TEST(HopperFunctions, HideTilesAnywhere) {
  const std::string bf16 = "dtype=bf16 head_dim=128 num_heads_q=1 seqlen_q=200 seqlen_k=1400" + kTable;
  check("192x64 tiles", bf16 + " mask_mod=kv_idx//64%3==1");
  check("192x64 tiles", bf16 + " mask_mod=(kv_idx<70)|(kv_idx>=1100)");
  check("192x64 tiles", bf16 + " mask_mod=(q_idx<64)|(kv_idx>=q_idx*5)");
  check("192x64 tiles", bf16 + " mask_mod=q_idx//64!=1");
  check("192x64 tiles", bf16 + " mask_mod=q_idx<0");
  check("128x64 tiles", "dtype=bf16 head_dim=256 num_heads_q=1 seqlen_q=200 seqlen_k=900 " + kTable +
                            " mask_mod=(q_idx//64+kv_idx//64)%3!=0");
}

TEST(HopperFunctions, HideByTables) {
  check("192x64 tiles", "dtype=bf16 head_dim=128 batch_size=2" + kFew + kDocuments + kTable);
  check("192x96 tiles", "dtype=f16 head_dim=64 batch_size=2 seqused_q=1 seqused_k=1" + kFew + kDocuments + kTable);
  // Beside left padding no tile is known.
  check("192x64 tiles", "dtype=bf16 head_dim=128" + kFew + " mask_mod=kv_idx%3!=h" + kTable);
  check("192x64 tiles", "dtype=bf16 head_dim=128 leftpad_k=1" + kFew + kCausal + kTable);
}

/// Each head has tiles of its own: of all entries of the batch or of each, of one head of keys or of several.
const std::string kHeads = "dtype=bf16 head_dim=64 batch_size=2 num_heads_q=4 num_heads_k=2 ",
                  kStripesOfHeads = "seqlen_q=300 seqlen_k=400 mask_mod=((q_idx//64+kv_idx//64+h+b)%3!=0)&(h!=2)",
                  kBlocksOfHeads = "seqlen_q=150 seqlen_k=200 block_mask=64x64[b,h]+full";
TEST(HopperFunctions, HideTilesOfEachHead) {
  check("192x96 tiles", kHeads + kStripesOfHeads + kTable);
  check("tiles", kHeads + kBlocksOfHeads, false, "attention_backward ");
}
TEST(HopperFunctions, HideTilesOfEachHeadByNight) {
  check("192x96 tiles", kHeads + "seqlen_q=300 seqlen_k=400 mask_mod=((q_idx//64+kv_idx//64+h)%3!=0)|(h==3)" + kTable);
  check("tiles", kHeads + kBlocksOfHeads + kTable);
  check("tiles", kHeads + kStripesOfHeads, false, "attention_backward ");
  check("tiles", kHeads + kBlocksOfHeads + " deterministic=1", false, "attention_backward ");
}

TEST(HopperFunctions, ChangeScores) {
  check("192x96 tiles", "dtype=f16 head_dim=64" + kFew + kRelative + kTable);
  check("tiles", "dtype=bf16 head_dim=128" + kFew + kRelative + kTable);
  check("tiles", "dtype=bf16 head_dim=128" + kFew + kRelative + kTable, true);
  check("128x64 tiles",
        "dtype=bf16 head_dim=256 num_heads_q=2 seqlen_q=150 seqlen_k=270 score_mod=5.0*tanh(score/5.0)" + kTable);
}

TEST(HopperFunctions, StandBesideOptions) {
  const std::string stripes = " mask_mod=(q_idx//64+kv_idx//64)%3!=0" + kTable, few = kFew + stripes;
  check("tiles", "dtype=bf16 head_dim=64 mask=causal window_left=150" + few);
  check("tiles", "dtype=bf16 head_dim=64 dropout_p=0.25" + few);
  check("tiles", "dtype=bf16 head_dim=128 softcap=20 sink=1" + few);
  check("tiles", "dtype=bf16 head_dim=64 bias=query[b,h,q,k]" + few + " score_mod=score*0.5");
  check("tiles", "dtype=bf16 head_dim=64 bias=bool[b,1,q,k]" + few + " score_mod=max(score,-1.0)");
  check("tiles", "dtype=fp8_e4m3 head_dim=128 seqused_k=1" + few);
  check("tiles", "dtype=fp8_e4m3 head_dim=64" + few + " score_mod=score*0.5-0.25*(q_idx%3)");
  check("splits",
        "dtype=bf16 head_dim=128 num_heads_q=2 num_heads_k=1 seqlen_q=180 seqlen_k=1500 mask_mod=kv_idx//64%3==1");
  check("heads packed", "dtype=bf16 head_dim=64 num_heads_q=6 num_heads_k=2 seqlen_q=25 seqlen_k=200 " +
                            std::string("mask_mod=kv_idx<=q_idx+100 score_mod=score-h"));
  check("tiles",
        "dtype=bf16 head_dim=64 layout=thd batch_size=2 max_seqlen_q=250 max_seqlen_k=300 total_q=380 total_k=440 "
        "num_heads_q=2" +
            stripes);
}

/// Over a cache, of positions. Where rows lie, lengths and pages differ by seed: the second one's are long enough for
/// stripes of 64 keys to part tiles that are seen.
void check_step(const std::string& path, const std::string& text, bool special = false) {
  const std::string problem = "kv_cache_attention cache_seqlens=1 " + text;
  const std::string schedule = plan(parse_problem(problem), {std::string(kHopper)}).schedule();
  EXPECT_NE(schedule.find(path), std::string::npos) << "another path: " << schedule << "\n  " << text;
  constexpr std::uint64_t kLong = 5;
  for (const std::uint64_t seed : {aligned_seed(special), kLong}) expect_passed(parse_problem(problem), kHopper, seed);
}
const std::string kStep = "dtype=bf16 head_dim=64 batch_size=2 num_heads_q=2 num_heads_k=1 ",
                  kPages = " page_size=16 num_pages=60 max_pages_per_seq=26",
                  kStripes = " mask_mod=(kv_idx//64%3!=1)&(kv_idx<=q_idx)";

/// Tiles that come one after the other in a list, each of pages or of places; of windows of pages there is no list.
TEST(HopperFunctions, SkipTilesOfACache) {
  check_step("128x64 tiles", kStep + "seqlen_q=70 score_mod=score*0.5" + kPages + kStripes);
  check_step("heads packed", kStep + "seqlen_q=9" + kPages + " mask_mod=(kv_idx//64+h)%3!=1");
}
TEST(HopperFunctions, SkipTilesOfACacheByNight) {
  check_step("tiles",
             kStep + "seqlen_q=70 capacity=400 cache_leftpad=1 cache_batch_idx=1 batch_size_cache=3" + kStripes);
  check_step("tiles", kStep + "seqlen_q=70 mask=causal window_left=100" + kPages + kStripes);
  check_step("tiles", kStep + "seqlen_q=70 mask=causal window_left=100 capacity=300" + kStripes);
  check_step("tiles", kStep + "seqlen_q=70 capacity=200 mask_mod=kv_idx>=5000");
  check_step("heads packed", kStep + "seqlen_q=9" + kPages + kStripes, true);
  check_step("3 splits", kStep + "seqlen_q=70 num_splits=3" + kPages + kStripes);
}

TEST(HopperFunctions, ChangeScoresOfACache) {
  check_step("tiles", kStep + "seqlen_q=70 capacity=300 cache_leftpad=1" + kRelative);
}
TEST(HopperFunctions, ChangeScoresOfACacheByNight) {
  check_step("queries rotated", kStep +
                                    "seqlen_q=70 append=1 seqlen_k_new=70 rotary=f32 rotary_dim=32 sink=1 softcap=20" +
                                    kPages + kRelative + " mask_mod=(kv_idx<=q_idx)&(kv_idx%3!=h)");
  check_step("tiles", kStep + "layout=thd max_seqlen_q=70 total_q=90 block_mask=32x32[1,1]+full" + kPages);
  check_step("tiles", kStep + "seqlen_q=70 append=1 seqlen_k_new=70 block_mask=32x32[b,h]" + kPages);
}

}  // namespace
}  // namespace tilewise::test
