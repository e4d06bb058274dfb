// The order in which tiles of queries are scheduled.
#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string_view>

#include "device/hopper/tile_order.h"
#include "support.hpp"

namespace tilewise::backends::hopper {
namespace {

using core::concat;

device::TileOrder order_of(std::string_view problem) { return params_of(*lowered(problem).launches().at(0)).order; }

/// Of short sequences most heads' tiles follow each other.
TEST(HopperOrder, EveryTileHasItsPlace) {
  for (const char* shape : {"batch_size=32 seqlen_q=512 num_heads_q=8", "batch_size=2 seqlen_q=512",
                            "batch_size=7 seqlen_q=200 num_heads_q=3", "batch_size=3 seqlen_q=1100 num_heads_q=5",
                            "batch_size=4 seqlen_q=4096 num_heads_q=16 bias=query[1,h,q,k]",
                            "batch_size=37 seqlen_q=1000 bias=query[1,h,q,k]", "batch_size=61 seqlen_q=700",
                            "batch_size=4 seqlen_q=4096 num_heads_q=16 window_left=1024",
                            "batch_size=40 seqlen_q=500 num_heads_q=4 window_left=100"}) {
    const device::TileOrder order = order_of(concat("dtype=bf16 head_dim=128 mask=causal ", shape));
    const std::int32_t count = order.num_tiles * order.num_heads * order.batch_size;
    std::set<std::array<std::int32_t, 3>> places;
    for (std::int32_t i = 0; i < count; ++i) {
      const device::OrderPlace at = device::place_in_order(order, i);
      EXPECT_TRUE(at.tile >= 0 && at.tile < order.num_tiles && at.head >= 0 && at.head < order.num_heads &&
                  at.batch >= 0 && at.batch < order.batch_size)
          << shape << ": place " << i;
      places.insert({at.tile, at.head, at.batch});
    }
    EXPECT_EQ(places.size(), static_cast<std::size_t>(count)) << shape;
  }
}

TEST(HopperOrder, ShortSequencesHaveTheirHeadsWorkedOnSideBySide) {
  const device::TileOrder order =
      order_of("dtype=bf16 batch_size=32 seqlen_q=512 num_heads_q=8 head_dim=256 mask=causal");
  EXPECT_EQ(order.heads_at_once, 4);
  EXPECT_EQ(order.short_tiles, 1);
  EXPECT_EQ(order.first_late_head, 256 - 66);
}

/// Where a set of about so many heads divides them all, sets are of one size.
TEST(HopperOrder, SetsOfHeadsAreEvenWhereTheyCanBe) {
  EXPECT_EQ(order_of("dtype=bf16 batch_size=8 seqlen_q=2048 num_heads_q=8 head_dim=256 mask=causal").heads_at_once, 8);
  EXPECT_EQ(order_of("dtype=bf16 batch_size=1 seqlen_q=2048 num_heads_q=61 head_dim=256 mask=causal").heads_at_once, 9);
}

/// Most tiles beside a window are as long as another, so that a head's first ones even out the end.
TEST(HopperOrder, ShortTilesBesideAWindowComeLast) {
  constexpr std::string_view kWindow = "dtype=bf16 num_heads_q=16 head_dim=128 mask=causal window_left=1024 ";
  const device::TileOrder order = order_of(concat(kWindow, "batch_size=4 seqlen_q=4096"));
  EXPECT_EQ(order.short_tiles, 3);
  EXPECT_EQ(order.heads_at_once, 1);
  const std::int32_t last = order.num_tiles * order.num_heads * order.batch_size - 1;
  EXPECT_EQ(device::place_in_order(order, last).tile, 0);
  EXPECT_EQ(device::place_in_order(order, last - 64).tile, 1);
  EXPECT_EQ(order_of(concat(kWindow, "batch_size=32 seqlen_q=512")).short_tiles, 1);
}

TEST(HopperOrder, EntriesThatShareABiasAreWorkedOnSideBySide) {
  constexpr std::string_view kBiased = "dtype=bf16 batch_size=4 seqlen_q=4096 num_heads_q=16 head_dim=128 bias=query";
  EXPECT_TRUE(order_of(concat(kBiased, "[1,h,q,k]")).batch_inside);
  EXPECT_FALSE(order_of(concat(kBiased, "[b,h,q,k]")).batch_inside);
  EXPECT_FALSE(order_of(concat(kBiased, "[1,1,q,k]")).batch_inside);
}

}  // namespace
}  // namespace tilewise::backends::hopper
