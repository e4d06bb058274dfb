// Decoding over a cache whose sequences differ in length, with parts of the keys scheduled by what the device alone
// knows: every option of the step, sequences from none to all of the capacity, few and many of them, and equal bits.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "../support/emulated_machines.hpp"
#include "../support/expect_passed.hpp"
#include "decoding.hpp"
#include "tilewise/plan.hpp"

namespace tilewise::test {
namespace {

class EmulatedKeyScheduler : public testing::TestWithParam<std::string> {
 protected:
  static void check(std::vector<std::int32_t> lengths) { Decoding(std::move(lengths)).check(GetParam()); }
};

TEST_P(EmulatedKeyScheduler, SequencesOfAnyLength) {
  check({5100, 3, 0, -1, 700, 33});                         // one has most
  check({3, 700, 0, 10240});                                // the last one
  check({640, 650, 630, 660, 655});                         // equally long, nearly
  check({30, 90, 150, 210, 270, 330, 390, 450, 510, 570});  // one part, two, three
  check({0, 0, -1});                                        // no key at all
  check({1, 1});                                            // fewer tiles than parts
  std::vector<std::int32_t> many(131, 40);                  // several a lane, and combine is told
  many[70] = 2000, many[130] = 0, many[3] = -1;
  check(many);
  check(std::vector<std::int32_t>(90, 100));  // each whole
}

TEST_P(EmulatedKeyScheduler, EveryOptionByNight) {
  const std::string decode = "kv_cache_attention batch_size=3 cache_seqlens=1 ";
  const std::string pages = "page_size=32 num_pages=900 max_pages_per_seq=300 ";
  for (const std::string& rest : {
           pages + "dtype=bf16 seqlen_q=1 num_heads_q=4 num_heads_k=2 head_dim=64 softmax_lse=1",
           pages + "dtype=f16 seqlen_q=3 num_heads_q=4 num_heads_k=1 head_dim=40 head_dim_v=24 mask=causal sink=1",
           pages +
               "dtype=bf16 seqlen_q=1 num_heads_q=2 head_dim=32 softcap=20 alibi_slopes=[h] append=1 seqlen_k_new=1",
           pages + "dtype=bf16 seqlen_q=2 num_heads_q=8 num_heads_k=2 head_dim=64 append=1 seqlen_k_new=2 rotary=f32 "
                   "rotary_dim=64 mask=causal",
           pages + "dtype=bf16 cache_dtype=fp8_e4m3 scales=token seqlen_q=1 num_heads_q=4 num_heads_k=1 head_dim=64 "
                   "append=1 seqlen_k_new=1",
           pages + "dtype=f16 cache_dtype=fp8_e4m3 scales=head seqlen_q=1 num_heads_q=4 num_heads_k=1 head_dim=128",
           pages + "dtype=bf16 layout=thd total_q=7 max_seqlen_q=4 num_heads_q=4 num_heads_k=2 head_dim=32 mask=causal",
           pages + "dtype=bf16 mla=1 seqlen_q=1 num_heads_q=16 num_heads_k=1 head_dim=576 head_dim_v=512",
           std::string("capacity=9000 dtype=bf16 seqlen_q=1 num_heads_q=2 num_heads_k=1 head_dim=32 cache_leftpad=1 "
                       "cache_batch_idx=1 batch_size_cache=4 window_left=8500 unaligned=1 softmax_lse=1"),
       }) {
    const AnyProblem problem = parse_problem(decode + rest);
    EXPECT_TRUE(schedules(problem, GetParam())) << rest;
    expect_passed(problem, GetParam(), 1);
  }
}

/// Parts are no more than there is room for, whatever lengths say.
TEST_P(EmulatedKeyScheduler, LengthsThatLie) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max(),
                         kLeast = std::numeric_limits<std::int32_t>::min();
  const std::vector<std::vector<std::int32_t>> lies = {
      {kMost, 5, kLeast}, {kMost, kMost, kMost}, {-7, 10241, 10240}, {kLeast, kLeast, kLeast}};
  for (const std::vector<std::int32_t>& lie : lies) Decoding({20, 5, 90}).run_with(lie, GetParam());
}

/// Whoever gives a number of parts, or wants a row's bits to depend on no other, has them so.
TEST_P(EmulatedKeyScheduler, WhereThereIsNone) {
  const std::string decode = "kv_cache_attention dtype=bf16 seqlen_q=1 num_heads_q=4 num_heads_k=2 head_dim=64 ";
  EXPECT_TRUE(schedules(parse_problem(decode + "batch_size=2 cache_seqlens=1 capacity=10000"), GetParam()));
  for (const char* rest : {"cache_seqlens=1 capacity=10000", "batch_size=2 cache_seqlens=1 capacity=8192",
                           "batch_size=2 capacity=10000", "batch_size=2 cache_seqlens=1 capacity=10000 num_splits=3",
                           "batch_size=2 cache_seqlens=1 capacity=10000 batch_invariant=1",
                           "batch_size=2 cache_seqlens=1 capacity=10000 window_left=900",
                           "batch_size=2000 cache_seqlens=1 capacity=10000"}) {
    EXPECT_FALSE(schedules(parse_problem(decode + rest), GetParam())) << rest;
  }
}

TILEWISE_ON_MACHINES(EmulatedKeyScheduler, "emulation.sm80");
TILEWISE_ON_MACHINES_BY_NIGHT(EmulatedKeyScheduler, "emulation.cdna", "emulation.rdna");

}  // namespace
}  // namespace tilewise::test
