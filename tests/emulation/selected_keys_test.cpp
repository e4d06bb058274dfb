// Selected keys on each emulated machine against the reference: attention and the KV cache step, with every other
// option around them. Drawn indices repeat keys, are -1, and lie outside of the keys: where one of these were read, it
// would be between a tensor's rows or behind them, which the emulator refuses.
#include <gtest/gtest.h>

#include <string>

#include "../support/emulated_machines.hpp"
#include "../support/expect_passed.hpp"
#include "verify/verify.hpp"

namespace tilewise::test {
namespace {

class SelectedKeys : public testing::TestWithParam<std::string> {
 protected:
  static void check(const std::string& problem) {
    for (const bool special : {false, true}) expect_passed(parse_problem(problem), GetParam(), aligned_seed(special));
  }
  static void check_step(const std::string& options) {
    for (std::uint64_t seed = 0; seed < 2; ++seed)
      expect_passed(parse_problem("kv_cache_attention cache_seqlens=1 softmax_lse=1 " + options), GetParam(), seed);
  }
};

TEST_P(SelectedKeys, OfAGroupOrOfEachHead) {
  const std::string sizes = "attention_forward batch_size=2 seqlen_q=9 seqlen_k=90 head_dim=64 dtype=bf16 ";
  check(sizes + "num_heads_q=4 num_heads_k=2 top_k=40");
  check(sizes + "num_heads_q=2 num_heads_k=2 top_k=3 key_indices_per_head=1");
}

/// A tile has no more heads than a query's group, and a group may be several tiles.
TEST_P(SelectedKeys, OfManyHeadsOnOneKey) {
  check(
      "attention_forward seqlen_q=2 seqlen_k=90 num_heads_q=136 num_heads_k=1 head_dim=192 head_dim_v=128 top_k=70 "
      "mask=causal dtype=bf16");
}

TEST_P(SelectedKeys, AmongAllOptions) {
  const std::string options =
      "num_heads_q=6 num_heads_k=2 key_indices_per_head=1 bias=f32[b,h,q,k] alibi_slopes=[h] sink=1 dropout_p=0.25 "
      "softcap=5 ";
  check(
      "attention_forward dtype=f16 batch_size=2 seqlen_q=5 seqlen_k=90 head_dim=64 top_k=150 mask=causal "
      "seqused_q=1 seqused_k=1 leftpad_k=1 " +
      options);
  check(
      "attention_forward dtype=bf16 batch_size=2 seqlen_q=5 seqlen_k=90 head_dim=40 head_dim_v=24 top_k=33 "
      "window_left=40 window_right=3 score_mod=score+0.01*kv_idx mask_mod=(kv_idx%5!=q_idx%3)&(h>=0) " +
      options);
}

TEST_P(SelectedKeys, InPackedSequences) {
  check(
      "attention_forward layout=thd batch_size=3 max_seqlen_q=9 max_seqlen_k=90 total_q=20 total_k=200 num_heads_q=4 "
      "num_heads_k=4 head_dim=40 top_k=70 key_indices_per_head=1 window_left=40 sink=1 clear_rest=1 dtype=bf16");
}

/// Tiles of indices are not the mask's tiles.
TEST_P(SelectedKeys, UnderABlockMask) {
  check(
      "attention_forward batch_size=2 seqlen_q=20 seqlen_k=90 num_heads_q=2 num_heads_k=1 head_dim=32 top_k=33 "
      "block_mask=16x48[b,1]+full mask_mod=(q_idx-kv_idx)%3!=1 bias=bool[b,h,q,k] batch_invariant=1 dtype=f16");
}

TEST_P(SelectedKeys, SplitOverBlocks) {
  check(
      "attention_forward seqlen_q=1 seqlen_k=900 num_heads_q=8 num_heads_k=1 head_dim=128 top_k=700 sink=1 dtype=bf16");
}

TEST_P(SelectedKeys, Backward) {
  const std::string sizes = "attention_backward batch_size=2 seqlen_q=9 seqlen_k=90 head_dim=64 dtype=bf16 ";
  check(sizes + "num_heads_q=4 num_heads_k=2 top_k=140 dlse=1");
  check(sizes + "num_heads_q=2 num_heads_k=2 top_k=3 key_indices_per_head=1 mask=causal");
}

/// A run of indices has a tile of heads after the other, and dk another kernel than dv.
TEST_P(SelectedKeys, BackwardOfManyHeadsOnOneKey) {
  check(
      "attention_backward seqlen_q=2 seqlen_k=90 num_heads_q=136 num_heads_k=1 head_dim=192 head_dim_v=128 top_k=70 "
      "mask=causal dtype=bf16");
}

TEST_P(SelectedKeys, BackwardAmongAllOptions) {
  const std::string options =
      "num_heads_q=6 num_heads_k=2 key_indices_per_head=1 bias=f32[b,h,q,k] alibi_slopes=[h] sink=1 dsink=1 "
      "dropout_p=0.25 softcap=5 ";
  check(
      "attention_backward dtype=f16 batch_size=2 seqlen_q=5 seqlen_k=90 head_dim=64 top_k=150 mask=causal "
      "seqused_q=1 seqused_k=1 leftpad_k=1 " +
      options);
  check(
      "attention_backward dtype=bf16 batch_size=2 seqlen_q=5 seqlen_k=90 head_dim=40 head_dim_v=24 top_k=33 "
      "window_left=40 window_right=3 score_mod=score+0.01*kv_idx mask_mod=(kv_idx%5!=q_idx%3)&(h>=0) " +
      options);
}

/// Columns past a group's last head are heads again, and a mask hides them where it hides that head.
TEST_P(SelectedKeys, BackwardUnderABlockMask) {
  check(
      "attention_backward batch_size=2 seqlen_q=20 seqlen_k=90 num_heads_q=2 num_heads_k=1 head_dim=32 top_k=33 "
      "block_mask=16x48[b,1]+full mask_mod=(q_idx-kv_idx)%3!=1 bias=bool[b,h,q,k] dtype=f16");
}

TEST_P(SelectedKeys, BackwardInPackedSequences) {
  check(
      "attention_backward layout=thd batch_size=3 max_seqlen_q=9 max_seqlen_k=90 total_q=20 total_k=200 num_heads_q=4 "
      "num_heads_k=4 head_dim=40 top_k=70 key_indices_per_head=1 window_left=40 sink=1 clear_rest=1 dtype=bf16");
}

TEST_P(SelectedKeys, OfACache) {
  const std::string heads = "num_heads_q=4 num_heads_k=2 head_dim=64 batch_size=3 ";
  check_step(heads +
             "dtype=bf16 capacity=90 seqlen_q=2 top_k=40 cache_batch_idx=1 batch_size_cache=4 cache_leftpad=1 ");
  check_step(heads +
             "dtype=f16 page_size=16 num_pages=30 max_pages_per_seq=6 seqlen_q=3 append=1 seqlen_k_new=3 mask=causal "
             "top_k=50 key_indices_per_head=1 sink=1 alibi_slopes=[h] rotary=f32 rotary_dim=32");
  check_step(heads +
             "layout=thd max_seqlen_q=4 total_q=9 dtype=bf16 page_size=1 num_pages=200 max_pages_per_seq=60 append=1 "
             "max_seqlen_k_new=4 total_k_new=9 window_left=20 top_k=30 score_mod=score*0.5 mask_mod=kv_idx%7!=3");
}

TEST_P(SelectedKeys, OfACacheInFp8) {
  const std::string pages = "page_size=16 num_pages=30 max_pages_per_seq=6 cache_dtype=fp8_e4m3 dtype=bf16 seqlen_q=1 ";
  check_step(pages + "batch_size=3 num_heads_q=4 num_heads_k=2 head_dim=64 append=1 scales=token top_k=50");
  check_step(pages + "batch_size=2 num_heads_q=40 num_heads_k=1 head_dim=128 scales=tensor top_k=90 num_splits=3");
  check_step(pages + "batch_size=2 num_heads_q=8 num_heads_k=1 head_dim=128 scales=head top_k=90");
}

TEST_P(SelectedKeys, OfValuesWithinTheKeys) {
  const std::string latent = "mla=1 num_heads_k=1 head_dim=576 head_dim_v=512 seqlen_q=1 top_k=70 page_size=64 ";
  check_step(latent + "dtype=bf16 num_heads_q=128 num_pages=6 max_pages_per_seq=3");
  check_step(latent + "dtype=bf16 cache_dtype=fp8_e4m3 scales=token num_heads_q=16 num_pages=6 max_pages_per_seq=3");
}

// The other machines with WMMA differ in products: rdna4_test.cpp has one of theirs.
TILEWISE_ON_MACHINES(SelectedKeys, "emulation.cdna");
TILEWISE_ON_MACHINES_BY_NIGHT(SelectedKeys, "emulation.sm80", "emulation.rdna");

/// Where Hopper's kernel of MLA loads them one by one: in pages, in parts, and where two blocks load for each other.
TEST(HopperSelectedKeys, OfMla) {
  for (const char* options :
       {"batch_size=2 seqlen_q=1 num_heads_q=64 page_size=16 num_pages=64 max_pages_per_seq=20 top_k=100",
        "batch_size=2 seqlen_q=3 num_heads_q=200 capacity=400 top_k=260 num_splits=3",
        "layout=thd batch_size=3 max_seqlen_q=4 total_q=9 num_heads_q=16 page_size=8 num_pages=80 "
        "max_pages_per_seq=24 top_k=64 mask=causal",
        "batch_size=2 seqlen_q=1 num_heads_q=128 capacity=100 top_k=33 append=1 cache_batch_idx=1 cache_leftpad=1"}) {
    const std::string form = "kv_cache_attention dtype=bf16 num_heads_k=1 head_dim=192 head_dim_v=128 mla=1 ";
    for (std::uint64_t seed = 0; seed < 2; ++seed) {
      expect_passed(parse_problem(form + "cache_seqlens=1 softmax_lse=1 " + options), "emulation.sm90", seed);
    }
  }
}

}  // namespace
}  // namespace tilewise::test
