// How the backward pass schedules tiles of keys: their order, held against a list schedule, and parts of queries.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "device/hopper/bwd_work.h"
#include "support.hpp"

namespace tilewise::backends::hopper {
namespace {

device::TileOrder backward_order(const std::string& problem) {
  const gpu::Lowering lowering = lowered_backward("dtype=bf16 head_dim=128 " + problem);
  return params_of<Bwd>(*lowering.launches().at(1)).order;
}

/// The shortest tiles of keys at the end would be those that the others wait for.
TEST(HopperBwdSchedule, BlocksThatAddInAnOrderBeginInIt) {
  const std::string problem = "batch_size=4 seqlen_q=4096 num_heads_q=16 ";
  const device::TileOrder causal = backward_order(problem + "mask=causal dq=0"),
                          ordered = backward_order(problem + "mask=causal deterministic=1");
  EXPECT_EQ(causal.short_tiles, 8);
  EXPECT_EQ(ordered.short_tiles, 0);
  EXPECT_GT(ordered.heads_at_once, 1);
  EXPECT_EQ(ordered.heads_at_once, causal.heads_at_once);
  EXPECT_EQ(backward_order(problem + "deterministic=1").heads_at_once, ordered.heads_at_once);
  EXPECT_EQ(backward_order(problem).heads_at_once, 1);
}

constexpr device::HopperBwdConfig in_order(bool both_ways) {
  device::HopperBwdConfig config;
  config.ordered = 1;
  config.both_ways = both_ways;
  return config;
}
/// As kernels find tiles of keys: each head's from the last one on, but of the rising heads' last share from the first.
void expect_order(const std::string& text, int rising_heads) {
  const gpu::Lowering lowering = lowered_backward("dtype=bf16 head_dim=128 " + text);
  const auto& params = params_of<Bwd>(*lowering.launches().at(1));
  const device::TileOrder& order = params.order;
  EXPECT_EQ(order.rising_heads, rising_heads) << text;
  const int heads = order.num_heads * order.batch_size;
  std::vector<std::vector<std::int32_t>> tiles(static_cast<std::size_t>(heads));
  for (std::int32_t i = 0; i < heads * order.num_tiles; ++i) {
    const device::OrderPlace place =
        rising_heads > 0 ? device::key_place<in_order(true)>(params, i) : device::key_place<in_order(false)>(params, i);
    tiles.at(static_cast<std::size_t>(place.batch * order.num_heads + place.head)).push_back(place.tile);
  }
  for (int head = 0; head < heads; ++head) {
    std::vector<std::int32_t>& of_head = tiles.at(static_cast<std::size_t>(head));
    ASSERT_EQ(of_head.size(), static_cast<std::size_t>(order.num_tiles)) << text;
    const auto last_share = of_head.end() - params.tiles;
    EXPECT_TRUE(std::is_sorted(of_head.begin(), last_share, std::greater<>())) << text << ", head " << head;
    if (head < heads - rising_heads) {
      EXPECT_TRUE(std::is_sorted(last_share, of_head.end(), std::greater<>())) << text << ", head " << head;
    } else {
      EXPECT_TRUE(std::is_sorted(last_share, of_head.end())) << text << ", head " << head;
    }
  }
}
/// No fewer heads than a set, less than two, or all; of groups in shares the last share's tiles.
TEST(HopperBwdSchedule, TheLastHeadsBeginWithTheirFirstKeys) {
  expect_order("batch_size=4 seqlen_q=4096 num_heads_q=16 mask=causal", 9);  // sets of 5
  expect_order("batch_size=1 seqlen_q=4096 num_heads_q=8 mask=causal", 8);
  expect_order("batch_size=4 seqlen_q=4096 num_heads_q=16 mask=causal window_left=1023", 9);
  expect_order("batch_size=4 seqlen_q=4096 num_heads_q=16 num_heads_k=4 mask=causal", 6);
  expect_order("batch_size=4 seqlen_q=4096 num_heads_q=16 mask=causal batch_invariant=1", 0);
  expect_order("batch_size=4 seqlen_q=4096 num_heads_q=16 deterministic=1", 0);
}

/// A block waits for its neighbour at each of a tile's query heads.
TEST(HopperBwdSchedule, TilesOfManyQueryHeadsGoOneWay) {
  const auto both_ways = [](const std::string& text) {
    const gpu::Lowering lowering = lowered_backward("dtype=bf16 batch_size=16 num_heads_q=32 mask=causal " + text);
    return gradients_config(lowering).both_ways != 0;
  };
  EXPECT_TRUE(both_ways("seqlen_q=1024 head_dim=64 num_heads_k=8"));
  EXPECT_FALSE(both_ways("seqlen_q=1024 head_dim=64 num_heads_k=2"));
  EXPECT_TRUE(both_ways("seqlen_q=512 head_dim=128 num_heads_k=8"));
  EXPECT_FALSE(both_ways("seqlen_q=512 head_dim=128 num_heads_k=2"));
}

/// Which a head's shortest tiles at the end would have read its queries once more.
TEST(HopperBwdSchedule, WideHeadsOfFewTilesAreDoneAtOnce) {
  const auto short_tiles = [](const std::string& problem) {
    const gpu::Lowering lowering = lowered_backward("dtype=bf16 head_dim=192 num_heads_q=8 mask=causal " + problem);
    return params_of<Bwd>(*lowering.launches().at(1)).order.short_tiles;
  };
  EXPECT_EQ(short_tiles("batch_size=32 seqlen_q=512"), 0);
  EXPECT_EQ(short_tiles("batch_size=16 seqlen_q=1024"), 4);
  EXPECT_EQ(short_tiles("batch_size=4 seqlen_q=512"), 2);  // whose last set is a quarter of all
  EXPECT_EQ(short_tiles("batch_size=32 seqlen_q=512 dropout_p=0.1"), 2);
}

/// Whether the launch before the gradients' clears dq's sums.
bool clears_sums(const std::string& problem) {
  const gpu::Lowering lowering = lowered_backward("dtype=bf16 head_dim=128 num_heads_q=2 " + problem);
  return params_of<BwdPreprocess>(*lowering.launches().at(0)).dq_accum_a_head > 0;
}

/// In an order the first sums of a tile of queries are stored; queries that see no key have none.
TEST(HopperBwdSchedule, SumsThatATileOfKeysBeginsAreNotCleared) {
  EXPECT_TRUE(clears_sums("seqlen_q=512 mask=causal"));
  EXPECT_FALSE(clears_sums("seqlen_q=512 deterministic=1"));
  EXPECT_FALSE(clears_sums("seqlen_q=512 mask=causal batch_invariant=1"));
  EXPECT_FALSE(clears_sums("seqlen_q=512 seqlen_k=700 mask=causal window_left=100 deterministic=1"));
  EXPECT_TRUE(clears_sums("seqlen_q=512 seqlen_k=200 mask=causal deterministic=1"));
  EXPECT_FALSE(clears_sums("seqlen_q=512 seqlen_k=200 alignment=top_left mask=causal deterministic=1"));
  EXPECT_TRUE(clears_sums("seqlen_q=512 seqlen_k=200 alignment=top_left window_left=100 deterministic=1"));
  EXPECT_TRUE(clears_sums("seqlen_q=512 seqused_k=1 deterministic=1"));
}

/// Of the time until the last tile of keys is done, the part in which multiprocessors work, where each takes the next
/// one once it is done: 64 queries and 128 keys in 3,150 cycles, a tile of keys 7,100 beside.
double busy_part(const std::string& text, std::int32_t seqlen, std::int32_t group, std::int32_t window) {
  const device::TileOrder order = backward_order(text);
  std::vector<double> busy(static_cast<std::size_t>(h200().multiprocessors));
  double all = 0.0;
  for (std::int32_t i = 0; i < order.num_tiles * order.num_heads * order.batch_size; ++i) {
    const std::int32_t tile = order.num_tiles - 1 - device::place_in_order(order, i).tile;  // the first keys come first
    const std::int32_t queries = std::min(seqlen - 128 * tile, window + 128);
    const double cycles = 7100.0 + 3150.0 * group * std::ceil(queries / 64.0);
    *std::ranges::min_element(busy) += cycles;
    all += cycles;
  }
  return all / (*std::ranges::max_element(busy) * static_cast<double>(busy.size()));
}

TEST(HopperBwdSchedule, TilesOfKeysAreScheduledEvenly) {
  for (const auto& [batch, seqlen, heads, heads_k] : {std::array{4, 4096, 16, 16},
                                                      {4, 4096, 16, 4},
                                                      {4, 4096, 16, 2},
                                                      {2, 8192, 16, 4},
                                                      {1, 8192, 16, 16},
                                                      {8, 2048, 16, 4},
                                                      {1, 16384, 16, 8},
                                                      {1, 4096, 32, 8}}) {
    const std::string problem =
        core::concat("batch_size=", batch, " seqlen_q=", seqlen, " num_heads_q=", heads, " num_heads_k=", heads_k);
    EXPECT_GT(busy_part(problem + " mask=causal dq=0", seqlen, heads / heads_k, seqlen), 0.968) << problem;
  }
  for (const int window : {512, 1023, 2048}) {  // with dq some have an order, in which they are not scheduled so
    const std::string problem = core::concat("batch_size=4 seqlen_q=4096 num_heads_q=16 mask=causal dq=0 window_left=");
    EXPECT_GT(busy_part(core::concat(problem, window), 4096, 1, window), 0.985) << window;
  }
}

/// As many tiles as multiprocessors, of which the longest takes twice as long as the mean one.
TEST(HopperBwdSchedule, QueriesComeInPartsWhereFewTilesOfKeysDiffer) {
  const std::string few = "seqlen_q=2048 num_heads_q=32 num_heads_k=8 dropout_p=0.1 ";
  EXPECT_EQ(backward_order(few + "mask=causal").num_splits, 2);
  EXPECT_EQ(backward_order(few + "mask=causal batch_invariant=1").num_splits, 1);
  EXPECT_EQ(backward_order(few).num_splits, 1);
  EXPECT_EQ(backward_order("seqlen_q=4096 num_heads_q=32 num_heads_k=8 mask=causal").num_splits, 1);
}

}  // namespace
}  // namespace tilewise::backends::hopper
