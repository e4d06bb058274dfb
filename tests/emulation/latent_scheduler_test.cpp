// MLA's decoding by Hopper's kernel over sequences that differ in length: parts of the keys that the device schedules,
// and rows of several parts that combine's blocks take in turn.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "../support/expect_passed.hpp"
#include "decoding.hpp"
#include "tilewise/plan.hpp"

namespace tilewise::test {
namespace {

constexpr const char* kSm90 = "emulation.sm90";

/// A block has the rows of 64 heads, so that 80 are two tiles of rows, whose blocks share keys of small pages.
constexpr DecodingForm kOneTile{64, 192, 128, 64}, kTwoTiles{80, 192, 128, 32}, kPairs{80, 192, 128, 16};
constexpr DecodingForm kWideRows{16, 320, 256, 64};  // a row's columns are two waves' of combine

void check(bool in_parts, std::vector<std::int32_t> lengths, const DecodingForm& form = kOneTile) {
  Decoding decoding(std::move(lengths), form);
  const std::string schedule = decoding.schedule_of(kSm90);
  EXPECT_NE(schedule.find("2 warpgroups that share values"), std::string::npos) << schedule;
  EXPECT_NE(schedule.find("scheduled by lengths"), std::string::npos) << schedule;
  EXPECT_EQ(schedule.find("pairs of blocks") != std::string::npos, form.page_size < 32) << schedule;
  decoding.check(kSm90);
  EXPECT_EQ(decoding.has_parts(kSm90), in_parts);
}

TEST(EmulatedLatentScheduler, OneLongSequenceAmongShortOnes) {
  check(true, {3000, 3, 0, -1, 130, 33});  // in more parts than a wave adds up
  check(true, {33, 0, 2600, 70}, kWideRows);
  check(true, {700, 33, 2600, 1400});
  check(true, {70, 0, 1, 129, 2500}, kTwoTiles);
  check(true, {1, 1900, 0, 64, 65}, kPairs);
}

TEST(EmulatedLatentScheduler, SequencesOfOneLength) {
  check(false, {640, 650, 630, 660, 655});  // more than are computed at once
  check(true, {640, 650});
  check(false, {600, 550}, kTwoTiles);
  check(false, {300, 310, 320}, kPairs);
  check(false, std::vector<std::int32_t>(40, 70));
}

TEST(EmulatedLatentScheduler, FewKeysOrNone) {
  check(false, {1, 1});
  check(false, {0, 1}, kTwoTiles);
  check(false, {0, 0, -1}, kPairs);
}

/// Several sequences in a lane, of which some have few parts and some many.
TEST(EmulatedLatentScheduler, ManySequences) {
  std::vector<std::int32_t> many(131, 20);
  many[70] = 6000, many[130] = 0, many[3] = -1, many[100] = 5000;
  check(true, many);
}

TEST(EmulatedLatentScheduler, EveryOption) {
  const std::string decode =
      "kv_cache_attention mla=1 num_heads_k=1 batch_size=3 cache_seqlens=1 head_dim=192 head_dim_v=128 ";
  const std::string pages = "page_size=32 num_pages=900 max_pages_per_seq=300 ";
  for (const std::string& rest : {
           pages + "dtype=f16 seqlen_q=3 num_heads_q=16 mask=causal softmax_lse=1",
           pages + "dtype=bf16 seqlen_q=2 num_heads_q=80 mask=causal append=1 seqlen_k_new=2",
           pages + "dtype=bf16 layout=thd max_seqlen_q=3 total_q=5 num_heads_q=64 mask=causal softmax_lse=1",
           std::string("dtype=bf16 seqlen_q=1 num_heads_q=16 capacity=8300 batch_size_cache=4 cache_batch_idx=1 "
                       "cache_leftpad=1 softmax_lse=1"),
           std::string("dtype=bf16 seqlen_q=2 num_heads_q=128 page_size=24 num_pages=500 max_pages_per_seq=345 "
                       "mask=causal softmax_lse=1"),
       }) {
    const AnyProblem problem = parse_problem(decode + rest);
    EXPECT_TRUE(schedules(problem, kSm90)) << rest;
    expect_passed(problem, kSm90, 1);
  }
}

/// Parts are no more than there is room for, whatever lengths say.
TEST(EmulatedLatentScheduler, LengthsThatLie) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max(),
                         kLeast = std::numeric_limits<std::int32_t>::min();
  for (const std::vector<std::int32_t>& lie :
       std::vector<std::vector<std::int32_t>>{{kMost, 5, kLeast}, {-7, 10241, 3}, {kLeast, kLeast, kLeast}}) {
    Decoding({20, 5, 90}, kTwoTiles).run_with(lie, kSm90);
  }
}

}  // namespace
}  // namespace tilewise::test
