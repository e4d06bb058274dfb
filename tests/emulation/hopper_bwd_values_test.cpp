// Values that are no numbers, hidden rows and steep softcaps in Hopper's backward pass on the emulated machine: random
// problems that failed once, with the seeds of their tensors.
#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "../support/expect_passed.hpp"
#include "hopper_paths.hpp"

namespace tilewise::test {
namespace {

/// Keys that no query sees: of other seeds than check()'s, since few have such a key with a value that is no number.
TEST(HopperBwdValues, SpecialValuesThatNobodySees) {
  for (const std::string_view text :
       {"attention_backward dtype=f16 seqlen_q=13 num_heads_q=2 head_dim=32 window_left=2 window_right=3 seqused_k=1",
        "attention_backward dtype=bf16 seqlen_q=13 seqlen_k=60 num_heads_q=2 head_dim=64 window_left=9 window_right=9",
        "attention_backward dtype=bf16 seqlen_q=13 seqlen_k=60 head_dim=192 window_left=9 window_right=9"}) {
    int checked = 0;
    for (std::uint64_t seed = 300000; checked < 12; ++seed) {
      if (!verify::draws_aligned_rows(seed) || !verify::draws_special_values(seed)) continue;
      ++checked;
      expect_passed(parse_problem(text), kHopper, seed);
    }
  }
}

void check_seeds(std::initializer_list<std::pair<const char*, std::uint64_t>> problems) {
  for (const auto& [text, seed] : problems) {
    expect_passed(parse_problem(text), kHopper, seed);
  }
}

/// A key of infinities weighs nothing where a query's score of it is -inf, and its product with rows behind the last
/// query is no number.
TEST(HopperBwdValues, InfiniteKeysBehindTheLastQuery) {
  check_seeds(
      {{"attention_backward dtype=f16 batch_size=2 seqlen_q=3 seqlen_k=39 num_heads_q=4 head_dim=256 head_dim_v=96",
        1201376},
       {"attention_backward dtype=f16 batch_size=2 seqlen_q=1 seqlen_k=167 num_heads_q=4 num_heads_k=1 head_dim=128 "
        "softmax_scale=0 dropout_p=0.5 seed_tensor=1 seqused_q=1 seqused_k=1 deterministic=1",
        1201510},
       {"attention_backward dtype=bf16 layout=sbhd batch_size=2 seqlen_q=18 seqlen_k=156 head_dim=16 "
        "dropout_p=0.899993896484375 seed_tensor=1 seqused_k=1 batch_invariant=1",
        401215}});
}

/// A bias of -inf hides what is a number, and a product of -inf hides itself, whatever the log-sum-exp is.
TEST(HopperBwdValues, InfinitiesAndABias) {
  check_seeds({{"attention_backward dtype=f16 layout=sbhd batch_size=2 seqlen_q=33 seqlen_k=23 num_heads_q=4 "
                "num_heads_k=2 head_dim=40 alignment=top_left window_left=1 softcap=2 bias=query[b,1,q,k] sink=query "
                "dbias=1",
                310029},
               {"attention_backward dtype=bf16 batch_size=2 seqlen_q=1 seqlen_k=1866 head_dim=64 window_right=1 "
                "softmax_scale=0.17183725082234358 bias=query[b,1,1,k] sink=1 dlse=1 dbias=1 dsink=1",
                310077}});
}

/// Queries to which a bias leaves no key, beside keys and values that are no numbers. Of wide heads one warpgroup
/// learns of such rows from weights alone.
TEST(HopperBwdValues, RowsThatABiasHidesWhole) {
  check_seeds({{"attention_backward dtype=f16 layout=bhsd seqlen_q=9 num_heads_q=2 head_dim=256 softcap=0.5 "
                "bias=f32[1,1,1,1] dbias=1 deterministic=1",
                8300449},
               {"attention_backward dtype=bf16 layout=thd batch_size=2 max_seqlen_q=12 max_seqlen_k=13 total_q=15 "
                "total_k=23 num_heads_q=2 head_dim=256 mask=causal bias=query[1,h,1,k] alibi_slopes=[b,h] seqused_k=1 "
                "dlse=1",
                8100616},
               {"attention_backward dtype=f16 layout=sbhd batch_size=2 seqlen_q=4 seqlen_k=46 num_heads_q=3 "
                "num_heads_k=1 head_dim=80 head_dim_v=256 alignment=top_left window_left=11 bias=bool[1,h,q,1] "
                "dropout_p=0.5 leftpad_k=1 dq=0 batch_invariant=1",
                7200582}});
}

/// Weights of f16 whose products with softcap's slope are subnormal.
TEST(HopperBwdValues, ASteepSoftcap) {
  check_seeds(
      {{"attention_backward dtype=f16 layout=sbhd batch_size=3 seqlen_q=4 seqlen_k=634 head_dim=24 softcap=0.5 "
        "alibi_slopes=[h] seqused_k=1 leftpad_k=1",
        640062}});
}

/// One key, so that dS is an error alone, beside a tanh at its end, whose slope is an error alone, too.
TEST(HopperBwdValues, ASoftcapAtItsEnd) {
  check_seeds(
      {{"attention_backward dtype=bf16 layout=sbhd batch_size=2 seqlen_q=160 seqlen_k=3 num_heads_q=4 "
        "num_heads_k=2 head_dim=16 softmax_scale=-0.25 softcap=0.5 bias=f32[1,h,1,1] seqused_k=1 dk=0 dbias=1",
        204}});
}

/// Scores whose cap ALiBi takes away again: what the tanh of the cap is off by stays.
TEST(HopperBwdValues, ASoftcapThatSlopesTakeAway) {
  check_seeds(
      {{"attention_backward dtype=f16 layout=bhsd seqlen_q=17 seqlen_k=18 num_heads_q=3 head_dim=192 head_dim_v=96 "
        "softcap=50 alibi_slopes=[h] sink=1 seqused_k=1 dlse=1 dv=0 dsink=1 deterministic=1",
        9099}});
}

}  // namespace
}  // namespace tilewise::test
