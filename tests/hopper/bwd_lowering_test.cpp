// What becomes of backward problems: launches, workspaces, tiles that fit, orders, and reasons for what is refused.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backends/cuda/hopper/bwd_config.hpp"
#include "backends/cuda/hopper/bwd_schedule.hpp"
#include "backends/portable/attention/kernels.hpp"
#include "support.hpp"

namespace tilewise::backends::hopper {
namespace {

using core::concat;

TEST(HopperBwdLowering, HasThreeLaunches) {
  const gpu::Lowering lowering = lowered_backward("dtype=bf16 seqlen_q=16384 num_heads_q=8 head_dim=128 mask=causal");
  const std::vector<const gpu::Launch*> launches = lowering.launches();
  ASSERT_EQ(launches.size(), 3U);
  EXPECT_EQ(launches[0]->key.body->name, "hopper_bwd_statistics");
  EXPECT_EQ(launches[1]->key.body->name, "hopper_bwd");
  EXPECT_EQ(launches[2]->key.body->name, "hopper_bwd_convert_dq");
  EXPECT_TRUE(launches[1]->programmatic);
  EXPECT_FALSE(launches[2]->programmatic);
  EXPECT_EQ(launches[0]->grid, gpu::Extent3{static_cast<std::uint32_t>(h200().multiprocessors)});
  EXPECT_EQ(launches[0]->tensor_maps.at(0).map.box, (std::array<std::uint32_t, 5>{64, 1, 128, 1, 1}));
  EXPECT_EQ(launches[1]->grid, gpu::Extent3{static_cast<std::uint32_t>(h200().multiprocessors)});
  EXPECT_EQ(launches[1]->tensor_maps.at(3).map.box, (std::array<std::uint32_t, 5>{64, 1, 64, 1, 1}));
  const std::size_t rows = 8U * 16384U;
  EXPECT_EQ(lowering.part("dq_accum")->bytes, rows * 128U * sizeof(float));
  EXPECT_EQ(lowering.part("lse2")->bytes, rows * sizeof(float));
  EXPECT_EQ(lowered_backward("dtype=bf16 seqlen_q=64 num_heads_q=2 head_dim=64 dq=0").launches().size(), 2U);
  const gpu::Lowering sink = lowered_backward("dtype=bf16 seqlen_q=64 num_heads_q=2 head_dim=64 sink=1 dsink=1");
  ASSERT_EQ(sink.launches().size(), 4U);
  EXPECT_EQ(sink.launches()[3]->key.body->name, "bwd_dsink");
  EXPECT_EQ(sink.part("delta")->bytes, 2U * 64U * sizeof(float));
  EXPECT_EQ(lowering.part("delta"), nullptr);
  const gpu::Lowering biased =
      lowered_backward("dtype=bf16 seqlen_q=64 num_heads_q=2 head_dim=64 bias=f32[b,h,q,k] dbias=1");
  ASSERT_EQ(biased.launches().size(), 4U);
  EXPECT_EQ(biased.launches()[3]->key.body->name, "bwd_dbias");
  EXPECT_EQ(biased.part("delta")->bytes, 2U * 64U * sizeof(float));
  EXPECT_GT(biased.estimated_us, lowered_backward("dtype=bf16 seqlen_q=64 num_heads_q=2 head_dim=64").estimated_us);
}

/// Tiles of statistics that are made before gradients begin, and blocks that make the others meanwhile.
void expect_late_statistics(const std::string& problem, std::int32_t first_tiles, std::int32_t late_blocks) {
  const gpu::Lowering lowering = lowered_backward("dtype=bf16 " + problem);
  const auto& statistics = params_of<BwdStatistics>(*lowering.launches().at(0));
  EXPECT_EQ(statistics.first_tiles, first_tiles) << problem;
  EXPECT_EQ(statistics.late_blocks, late_blocks) << problem;
  const gpu::Launch& gradients = *lowering.launches().at(1);
  EXPECT_EQ(gpu::config_of<Bwd>(gradients.key).late_statistics, late_blocks > 0) << problem;
  EXPECT_TRUE(gradients.programmatic) << problem;
  EXPECT_EQ(lowering.schedule.find("meanwhile") != std::string::npos, late_blocks > 0) << lowering.schedule;
  if (late_blocks == 0) {
    EXPECT_EQ(statistics.tiles, first_tiles) << problem;
    EXPECT_EQ(lowering.part("tiles_done"), nullptr) << problem;
  } else {
    EXPECT_EQ(params_of<Bwd>(gradients).statistics_tiles, statistics.grid.num_tiles) << problem;
    EXPECT_EQ(lowering.part("tiles_done")->bytes, static_cast<std::size_t>(statistics.tiles) * sizeof(std::uint32_t));
  }
}
TEST(HopperBwdLowering, StatisticsOfLaterHeadsAreMadeMeanwhile) {
  const std::string shape = "batch_size=4 seqlen_q=4096 num_heads_q=16 ";
  expect_late_statistics(shape + "head_dim=128 mask=causal", 6 * 32, 10);
  expect_late_statistics(shape + "head_dim=64 mask=causal", 6 * 16, 10);
  expect_late_statistics(shape + "head_dim=256 mask=causal", 4 * 64, 12);  // dq's sums are cleared, too
  expect_late_statistics(shape + "head_dim=128 num_heads_k=4 mask=causal", 4 * 6 * 32, 10);
  expect_late_statistics(
      "batch_size=4 num_heads_q=16 head_dim=128 mask=causal layout=thd max_seqlen_q=4096 max_seqlen_k=4096 "
      "total_q=9000 total_k=9000",
      6 * 32, 10);
  expect_late_statistics(shape + "head_dim=256 mask=causal seqused_k=1", 64 * 64, 0);  // which would spill
  expect_late_statistics("seqlen_q=4096 num_heads_q=5 head_dim=128 mask=causal", 5 * 32, 0);
  // Of queries that see few keys gradients would wait for so few blocks.
  expect_late_statistics("batch_size=40 seqlen_q=512 num_heads_q=16 head_dim=128 mask=causal", 34 * 4, 10);
  expect_late_statistics("batch_size=40 seqlen_q=384 num_heads_q=16 head_dim=128 mask=causal", 640 * 3, 0);
  expect_late_statistics("batch_size=40 seqlen_q=384 num_heads_q=16 head_dim=64 mask=causal", 45 * 2, 10);
  expect_late_statistics("seqlen_q=128 seqlen_k=8192 num_heads_q=2 head_dim=128", 2, 0);
}

TEST(HopperBwdLowering, DealsTilesOfKeysOutByACounterWhereItCan) {
  const std::string problem = "dtype=bf16 batch_size=2 seqlen_q=4096 num_heads_q=16 head_dim=128 ";
  for (const char* dims : {"", "head_dim_v=256 "}) {
    const gpu::Lowering dealt = lowered_backward(problem + dims + "mask=causal");
    EXPECT_TRUE(gpu::config_of<Bwd>(dealt.launches().at(1)->key).persistent);
    EXPECT_EQ(dealt.part("tile_counter")->bytes, sizeof(std::uint32_t));
  }
  const std::string any_dim = "dtype=bf16 batch_size=2 seqlen_q=4096 num_heads_q=16 ";
  for (const std::string& more :
       {problem + "bias=query[b,h,q,k]", problem + "bias=query[b,h,q,k] mask=causal", problem + "bias=bool[b,1,1,k]",
        any_dim + "head_dim=96 dropout_p=0.1", any_dim + "head_dim=256 softcap=30",
        std::string("dtype=f16 batch_size=2 seqlen_q=4096 num_heads_q=16 head_dim=64")}) {
    EXPECT_TRUE(gpu::config_of<Bwd>(lowered_backward(more).launches().at(1)->key).persistent) << more;
  }
  for (const char* not_so : {"deterministic=1 dropout_p=0.1", "dropout_p=0.1", "num_heads_k=4 seqused_k=1",
                             "bias=f32[b,h,q,k]", "bias=query[b,h,q,k] softcap=30"}) {
    const gpu::Lowering each = lowered_backward(problem + not_so);
    const std::uint32_t heads = std::string_view(not_so).starts_with("num_heads_k=4") ? 4 : 16;
    EXPECT_FALSE(gpu::config_of<Bwd>(each.launches().at(1)->key).persistent) << not_so;
    EXPECT_EQ(each.launches().at(1)->grid, gpu::Extent3{32 * heads * 2}) << not_so;
    EXPECT_EQ(each.part("tile_counter"), nullptr) << not_so;
  }
  // Nobody clears the counter where there are no statistics.
  const gpu::Lowering unasked =
      lowered_backward("dtype=bf16 batch_size=32 seqlen_q=0 seqlen_k=512 num_heads_q=16 head_dim=128");
  EXPECT_EQ(unasked.part("tile_counter"), nullptr);
}

TEST(HopperBwdLowering, OrdersTheSumsOfDqWhereAsked) {
  const std::string problem = "dtype=bf16 seqlen_q=200 num_heads_q=2 head_dim=64 ";
  for (const char* asks : {"deterministic=1", "batch_invariant=1"}) {
    const gpu::Lowering lowering = lowered_backward(problem + asks);
    EXPECT_TRUE(gpu::config_of<Bwd>(lowering.launches().at(1)->key).ordered);
    EXPECT_EQ(lowering.part("turns")->bytes, 2U * 2U * sizeof(float));  // heads, tiles of queries
    const gpu::Lowering drops = lowered_backward(problem + asks + " dropout_p=0.1");
    EXPECT_EQ(drops.part("turns")->bytes, 2U * 2U * 4U * sizeof(float));  // and warps, since none is left for couriers
  }
  for (const char* not_so : {"", "deterministic=1 dq=0"}) {
    const gpu::Lowering lowering = lowered_backward(problem + not_so);
    EXPECT_FALSE(gpu::config_of<Bwd>(lowering.launches().at(1)->key).ordered);
    EXPECT_EQ(lowering.part("turns"), nullptr);
  }
}

/// Where nobody asks for an order, and it is quicker.
TEST(HopperBwdLowering, OrdersTheSumsOfDqOfShortSequences) {
  const auto ordered = [](const std::string& problem) {
    return gpu::config_of<Bwd>(lowered_backward(problem).launches().at(1)->key).ordered != 0;
  };
  const std::string heads = "dtype=bf16 num_heads_q=16 head_dim=128 ",
                    short_ones = heads + "batch_size=32 seqlen_q=512 ";
  EXPECT_NE(lowered_backward(short_ones).schedule.find(", dq in a fixed order, rounded with"), std::string::npos);
  EXPECT_NE(lowered_backward(short_ones + "mask=causal").schedule.find("order, of the last heads the other way round"),
            std::string::npos);
  for (const char* option :
       {"", "mask=causal", "mask=causal softcap=30", "mask=causal window_left=100", "mask=causal alibi_slopes=[h]",
        "mask=causal head_dim_v=64", "bias=query[b,h,q,k]", "mask=causal bias=bool[b,1,1,k]",
        "mask=causal num_heads_k=4 seqused_k=1", "seqused_q=1 seqused_k=1"}) {
    EXPECT_TRUE(ordered(short_ones + option)) << option;
  }
  for (const char* option : {"mask=causal dropout_p=0.1", "mask=causal seqlen_k=1024", "mask=causal seqused_k=1 sink=1",
                             "mask=causal dq=0", "bias=f32[b,h,q,k]", "bias=query[b,h,q,k] softcap=30"}) {
    EXPECT_FALSE(ordered(short_ones + option)) << option;
  }
  EXPECT_TRUE(ordered(heads + "batch_size=4 seqlen_q=2048 mask=causal"));
  EXPECT_TRUE(ordered(heads + "batch_size=1 seqlen_q=2048 mask=causal"));
  EXPECT_FALSE(ordered("dtype=bf16 num_heads_q=8 head_dim=128 seqlen_q=2048 mask=causal"));  // few tiles
  EXPECT_TRUE(ordered(heads + "batch_size=1 seqlen_q=4096 mask=causal"));
  EXPECT_TRUE(ordered(heads + "batch_size=32 seqlen_q=8192 mask=causal"));
  EXPECT_FALSE(ordered(heads + "batch_size=32 seqlen_q=16384 mask=causal"));
  EXPECT_TRUE(ordered(heads + "batch_size=2 seqlen_q=512 mask=causal"));
  EXPECT_FALSE(ordered(heads + "batch_size=1 seqlen_q=512 mask=causal"));
  EXPECT_TRUE(ordered(heads + "batch_size=1 seqlen_q=1024 mask=causal"));
  EXPECT_TRUE(ordered(heads + "batch_size=8 seqlen_q=512"));
  EXPECT_FALSE(ordered(heads + "batch_size=4 seqlen_q=512"));
  EXPECT_TRUE(ordered(heads + "batch_size=32 seqlen_q=2048"));
  EXPECT_FALSE(ordered(heads + "batch_size=32 seqlen_q=4096"));
  EXPECT_TRUE(ordered(heads + "batch_size=32 seqlen_q=2048 mask=causal bias=query[b,h,q,k]"));
  EXPECT_FALSE(ordered(heads + "batch_size=32 seqlen_q=2048 bias=query[b,h,q,k]"));
  const std::string halves = "dtype=f16 num_heads_q=16 head_dim=128 mask=causal bias=query[b,h,q,k] batch_size=32 ";
  EXPECT_TRUE(ordered(halves + "seqlen_q=1024"));
  EXPECT_FALSE(ordered(halves + "seqlen_q=2048"));  // one way
  // Tiles of 128 queries have half as many steps for each tile of keys.
  EXPECT_TRUE(ordered("dtype=bf16 batch_size=8 seqlen_q=2048 num_heads_q=32 head_dim=64 mask=causal"));
  EXPECT_TRUE(ordered("dtype=f16 batch_size=4 seqlen_q=4096 num_heads_q=32 head_dim=64 mask=causal"));
  EXPECT_TRUE(ordered("dtype=bf16 batch_size=1 seqlen_q=4096 num_heads_q=32 head_dim=64 mask=causal"));
  EXPECT_FALSE(ordered("dtype=bf16 batch_size=16 seqlen_q=8192 num_heads_q=32 head_dim=64 mask=causal"));
  EXPECT_FALSE(
      ordered("dtype=bf16 batch_size=4 seqlen_q=4096 num_heads_q=32 head_dim=64 mask=causal window_left=1023"));
  EXPECT_TRUE(ordered("dtype=bf16 batch_size=16 seqlen_q=1024 num_heads_q=32 head_dim=64"));
  EXPECT_FALSE(ordered("dtype=bf16 batch_size=16 seqlen_q=2048 num_heads_q=32 head_dim=64"));
  EXPECT_TRUE(ordered("dtype=bf16 batch_size=2 seqlen_q=1024 num_heads_q=32 head_dim=64 mask=causal"));
  EXPECT_FALSE(ordered("dtype=bf16 batch_size=1 seqlen_q=2048 num_heads_q=12 head_dim=64 mask=causal"));
  // Softcap at all lengths, and windows that do not look far, where there are tiles enough.
  const std::string long_ones = heads + "batch_size=4 seqlen_q=4096 ";
  EXPECT_TRUE(ordered(long_ones + "softcap=30"));
  EXPECT_TRUE(ordered(long_ones + "mask=causal window_left=1023"));
  EXPECT_TRUE(ordered(heads + "batch_size=1 seqlen_q=4096 mask=causal window_left=1023"));
  EXPECT_TRUE(ordered(heads + "batch_size=2 seqlen_q=8192 mask=causal window_left=3000"));
  EXPECT_FALSE(ordered(heads + "batch_size=1 seqlen_q=16384 mask=causal window_left=3000"));
  EXPECT_FALSE(ordered(heads + "batch_size=1 seqlen_q=4096 softcap=30"));
  // Wide heads, by a block for each tile of keys.
  const std::string wide = "dtype=bf16 batch_size=32 seqlen_q=512 num_heads_q=8 mask=causal ";
  EXPECT_TRUE(ordered(wide + "head_dim=256"));
  EXPECT_FALSE(gpu::config_of<Bwd>(lowered_backward(wide + "head_dim=256").launches().at(1)->key).persistent);
  EXPECT_FALSE(ordered(wide + "head_dim=192"));
}

/// By the warps that multiply dQ beside dk and dv, too.
TEST(HopperBwdLowering, OrdersTheSumsOfDqOfWideHeadsThatOwnThem) {
  const auto schedule = [](const std::string& text) {
    return lowered_backward("dtype=bf16 num_heads_q=16 head_dim=192 head_dim_v=128 " + text).schedule;
  };
  const std::string own = "2 warpgroups that multiply dq too, 2 stages, dealt by a counter";
  const auto has = [&](const std::string& text, const std::string& what) {
    return schedule(text).find(what) != std::string::npos;
  };
  const std::string by_blocks = ", dq in a fixed order, rounded by blocks",
                    with_last = ", dq in a fixed order, rounded with",
                    both_ways = ", dq in a fixed order, of the last heads the other way round, rounded with";
  EXPECT_TRUE(has("batch_size=4 seqlen_q=4096 mask=causal deterministic=1", own + both_ways));
  EXPECT_TRUE(has("batch_size=4 seqlen_q=4096 mask=causal batch_invariant=1", own + by_blocks));
  EXPECT_TRUE(has("batch_size=4 seqlen_q=4096 deterministic=1", own + by_blocks));
  EXPECT_TRUE(has("batch_size=32 seqlen_q=512 mask=causal", own + both_ways));
  EXPECT_TRUE(has("batch_size=8 seqlen_q=2048 mask=causal", own + both_ways));
  EXPECT_FALSE(has("batch_size=4 seqlen_q=4096 mask=causal", "fixed order"));
  EXPECT_TRUE(has("batch_size=32 seqlen_q=512", own + with_last));
  EXPECT_FALSE(has("batch_size=16 seqlen_q=1024", "fixed order"));
  EXPECT_TRUE(has("batch_size=4 seqlen_q=4096 mask=causal window_left=1023", own + both_ways));
  // Few heads wait for each other.
  EXPECT_TRUE(has("batch_size=2 seqlen_q=2048 mask=causal", own + both_ways));
  EXPECT_FALSE(has("batch_size=1 seqlen_q=2048 mask=causal", "fixed order"));
  // Of groups.
  const std::string of_group = own + ", a query head at a time";
  EXPECT_TRUE(has("batch_size=32 seqlen_q=512 mask=causal num_heads_k=4", of_group + both_ways));
  EXPECT_TRUE(has("batch_size=32 seqlen_q=512 mask=causal num_heads_k=1", of_group + by_blocks));
  EXPECT_TRUE(has("batch_size=32 seqlen_q=512 num_heads_k=4", of_group + by_blocks));
  EXPECT_FALSE(has("batch_size=8 seqlen_q=2048 mask=causal num_heads_k=4", "fixed order"));
  // Packed sequences, whose blocks do not round what others have added up.
  EXPECT_TRUE(has("batch_size=32 seqlen_q=512 mask=causal seqused_k=1", both_ways));
  EXPECT_TRUE(has("batch_size=8 seqlen_q=2048 mask=causal seqused_k=1", both_ways));
  EXPECT_FALSE(has("batch_size=8 seqlen_q=2048 mask=causal seqused_k=1 sink=1", "fixed order"));
}

/// A block has a tile of keys for one query head of a group after the other, or, where dq's order would have the
/// longest tiles come last, for two of them, or where memory is slow or sequences are long one; sums of dk and dv go on
/// in memory then.
TEST(HopperBwdLowering, GivesSharesOfAGroupTilesOfTheirOwn) {
  const std::string heads = "dtype=bf16 num_heads_q=32 num_heads_k=8 head_dim=128 mask=causal ";
  const gpu::Lowering whole = lowered_backward(heads + "batch_size=32 seqlen_q=512");
  EXPECT_NE(whole.schedule.find(", a query head at a time, dq in a fixed order, of the last heads"), std::string::npos);
  EXPECT_EQ(whole.part("dk_accum"), nullptr);
  EXPECT_EQ(whole.part("dkdv_turns"), nullptr);
  const gpu::Lowering shared = lowered_backward(heads + "batch_size=8 seqlen_q=2048");
  const std::size_t tiles = 8U * 8U * 16U;
  EXPECT_EQ(shared.part("dk_accum")->bytes, tiles * 128U * 128U * sizeof(float));
  EXPECT_EQ(shared.part("dv_accum")->bytes, tiles * 128U * 128U * sizeof(float));
  EXPECT_EQ(shared.part("dkdv_turns")->bytes, tiles * 8U * sizeof(std::uint32_t));
  EXPECT_EQ(shared.launches().size(), 2U);  // nobody but the last share rounds dk and dv
  core::DeviceDescription h100 = h200();
  h100.memory_gigabytes_per_second = 3352;
  const auto shares = [](const std::string& text, const core::DeviceDescription& device = h200()) {
    const Problem p = parse_problem("attention_backward device=cuda dtype=bf16 " + text);
    return head_shares(p, bwd_config(p, device), device);
  };
  const std::string groups = "head_dim=128 num_heads_q=32 num_heads_k=8 ",
                    asked = "deterministic=1 mask=causal seqlen_q=4096 ", narrow = asked + "head_dim=64 ";
  EXPECT_EQ(shares("deterministic=1 mask=causal seqlen_q=2048 " + groups), 2);
  EXPECT_EQ(shares("deterministic=1 mask=causal seqlen_q=2048 " + groups, h100), 4);
  EXPECT_EQ(shares(asked + groups), 4);
  EXPECT_EQ(shares(asked + groups + "window_left=1023"), 1);
  EXPECT_EQ(shares(asked + "head_dim=128 num_heads_q=8"), 1);
  EXPECT_EQ(shares(narrow + "num_heads_q=32 num_heads_k=8", h100), 2);
  EXPECT_EQ(shares(narrow + "num_heads_q=6 num_heads_k=2"), 3);     // no pairs of three
  EXPECT_EQ(shares("deterministic=1 seqlen_q=4096 " + groups), 1);  // tiles are alike
  EXPECT_EQ(shares("mask=causal seqlen_q=8192 " + groups), 1);
  // Many heads of a key head, or few tiles of keys, are in an order to 4k.
  const auto ordered = [](const std::string& text, const core::DeviceDescription& device = h200()) {
    const Problem p = parse_problem("attention_backward device=cuda dtype=bf16 mask=causal " + text);
    return bwd_config(p, device).ordered != 0;
  };
  EXPECT_TRUE(ordered("head_dim=128 batch_size=4 seqlen_q=4096 num_heads_q=64 num_heads_k=8"));
  const std::string few = "num_heads_q=32 num_heads_k=8 ";
  EXPECT_FALSE(ordered(few + "head_dim=128 batch_size=4 seqlen_q=4096"));
  EXPECT_TRUE(ordered(few + "head_dim=128 batch_size=2 seqlen_q=4096"));
  EXPECT_TRUE(ordered(few + "head_dim=128 batch_size=4 seqlen_q=4096", h100));
  EXPECT_FALSE(ordered(few + "head_dim=128 batch_size=4 seqlen_q=4096 softcap=30", h100));
  EXPECT_FALSE(ordered(few + "head_dim=128 batch_size=2 seqlen_q=8192", h100));
  EXPECT_TRUE(ordered("head_dim=64 batch_size=8 seqlen_q=2048 num_heads_q=71 num_heads_k=1"));
  EXPECT_FALSE(ordered("head_dim=64 batch_size=8 seqlen_q=2048 num_heads_q=32 num_heads_k=8"));
  EXPECT_FALSE(ordered("head_dim=256 batch_size=32 seqlen_q=512 num_heads_q=8 num_heads_k=4"));
}

/// Of wide heads whose dk and dv two warpgroups have registers for, with nothing but masks: tiles of keys are twice as
/// long then, and half as much is added to dq.
TEST(HopperBwdLowering, LetsThoseThatComputeMultiplyDqOfWideHeads) {
  const auto owns = [](const std::string& text) {
    const Problem p = parse_problem("attention_backward device=cuda num_heads_q=16 seqlen_q=4096 batch_size=4 " + text);
    return bwd_schedule(p, h200()).config.own_dq != 0;
  };
  const std::string wide = "head_dim=192 head_dim_v=128 ";
  for (const char* with :
       {"dtype=bf16", "dtype=f16 mask=causal", "dtype=bf16 mask=causal window_left=1023", "dtype=bf16 num_heads_k=4",
        "dtype=bf16 deterministic=1", "dtype=bf16 seqused_k=1 sink=query dsink=1 dlse=1"}) {
    EXPECT_TRUE(owns(wide + with)) << with;
  }
  EXPECT_TRUE(owns("dtype=bf16 head_dim=136 head_dim_v=64"));
  for (const char* with : {"softcap=30", "alibi_slopes=[h]", "dropout_p=0.1", "bias=query[b,h,q,k]"}) {
    EXPECT_FALSE(owns(wide + "dtype=bf16 " + with)) << with;
  }
  for (const char* dims : {"head_dim=192", "head_dim=128 head_dim_v=192", "head_dim=256 head_dim_v=64", "head_dim=128"})
    EXPECT_FALSE(owns(std::string("dtype=bf16 ") + dims)) << dims;
  // Few tiles of keys, whose queries come in parts.
  const Problem few =
      parse_problem("attention_backward device=cuda dtype=bf16 num_heads_q=1 seqlen_q=4096 seqlen_k=128 " + wide);
  EXPECT_FALSE(bwd_schedule(few, h200()).config.own_dq);
  EXPECT_NE(lowered_backward("dtype=bf16 num_heads_q=16 seqlen_q=4096 " + wide)
                .schedule.find("2 warpgroups that multiply dq too, 2 stages"),
            std::string::npos);
}

/// What `tilewise tune` chooses from: schedules that fit the device, each with a name of its own.
TEST(HopperBwdLowering, HasOtherSchedules) {
  const auto problem_of = [](const std::string& text) {
    return parse_problem("attention_backward device=cuda " + text);
  };
  const std::string heads = "dtype=bf16 num_heads_q=16 head_dim=128 ";
  for (const std::string& text :
       {heads + "batch_size=4 seqlen_q=4096 mask=causal window_left=1023", heads + "seqlen_q=4096 deterministic=1",
        heads + "seqlen_q=512 num_heads_k=2 dropout_p=0.1", heads + "seqlen_q=700 bias=query[b,h,q,k]",
        std::string("dtype=bf16 num_heads_q=16 head_dim=192 head_dim_v=128 seqlen_q=4096 mask=causal"),
        std::string("dtype=f16 seqlen_q=2048 num_heads_q=8 head_dim=64 softcap=20")}) {
    const Problem problem = problem_of(text);
    const std::vector<BwdSchedule> candidates = bwd_candidates(problem, h200());
    SCOPED_TRACE(text);
    expect_candidates<Bwd>(candidates, bwd_schedule(problem, h200()),
                           [&](const std::string& name) { return tuned_bwd_schedule(problem, h200(), name); });
    for (const BwdSchedule& candidate : candidates) {
      EXPECT_GE(candidate.config.ordered, problem.deterministic ? 1 : 0) << name_of(candidate);
    }
  }
  EXPECT_EQ(bwd_candidates(problem_of(heads + "seqlen_q=4096 batch_invariant=1"), h200()).size(), 1U);
  for (const BwdSchedule& each : bwd_candidates(problem_of(heads + "seqlen_q=4096 dq=0"), h200())) {
    EXPECT_FALSE(each.config.ordered) << name_of(each);
  }
}

TEST(HopperBwdLowering, TakesTheScheduleThatWasTuned) {
  const Problem problem = parse_problem(
      "attention_backward device=cuda dtype=bf16 batch_size=4 seqlen_q=4096 num_heads_q=16 head_dim=128 "
      "mask=causal window_left=1023");
  const auto schedule_with = [&](const std::string& name) {
    return lower(problem, tuned_h200(problem, name)).lowering.schedule;
  };
  EXPECT_NE(schedule_with("128x64/3/fixed order/dealt").find(", dealt by a counter, dq in a fixed order"),
            std::string::npos);
  EXPECT_EQ(schedule_with("128x64/3/fixed order").find("dealt"), std::string::npos);
  EXPECT_EQ(schedule_with("no such schedule"), lower(problem, h200()).lowering.schedule);
}

/// Where blocks round dq, no launch does, and a second counter says which queries are next.
TEST(HopperBwdLowering, RoundsDqWhereItsLastSumsAreKnown) {
  const std::string heads = "dtype=bf16 batch_size=4 seqlen_q=4096 num_heads_q=16 head_dim=128 ";
  const gpu::Lowering rounding = lowered_backward(heads + "deterministic=1");
  EXPECT_EQ(rounding.launches().size(), 2U);
  EXPECT_EQ(rounding.part("tile_counter")->bytes, 2 * sizeof(std::uint32_t));
  EXPECT_LT(rounding.estimated_us, lowered_backward(heads + "deterministic=1 seqused_k=1").estimated_us);
  const auto rounds = [](const std::string& options) {
    const Problem problem = parse_problem("attention_backward device=cuda " + options);
    return std::ranges::any_of(bwd_candidates(problem, h200()), [](const auto& s) { return s.config.rounds != 0; });
  };
  for (const char* option : {"", "mask=causal window_left=1023", "alibi_slopes=[h]", "batch_invariant=1",
                             "head_dim_v=192", "mask=causal seqlen_k=8192", "bias=query[b,h,q,k]", "dropout_p=0.1"}) {
    EXPECT_TRUE(rounds(heads + option)) << option;
  }
  for (const char* not_so :
       {"seqused_k=1", "bias=query[b,h,q,1]", "num_heads_k=4 seqused_k=1", "mask=causal seqlen_k=2048", "dq=0"}) {
    EXPECT_FALSE(rounds(heads + not_so)) << not_so;
  }
  // Without an order a head's tiles of keys are counted: a word for each, and a launch where these are few.
  const gpu::Lowering counting = lowered_backward(heads);
  EXPECT_EQ(counting.launches().size(), 2U);
  EXPECT_EQ(counting.part("turns")->bytes, 4U * 16U * 32U * sizeof(std::uint32_t));
  EXPECT_EQ(lowered_backward("dtype=bf16 seqlen_q=16384 num_heads_q=16 head_dim=128 mask=causal").launches().size(),
            3U);
  EXPECT_EQ(lowered_backward("dtype=bf16 batch_size=1 seqlen_q=4096 num_heads_q=16 head_dim=128").launches().size(),
            3U);
}

/// The last tile of keys that adds to queries rounds them where couriers carry sums and no tile ends too many, as that
/// of the first keys does under a causal mask but in an order both ways.
TEST(HopperBwdLowering, RoundsDqWithItsLastSums) {
  const auto config = [](const std::string& problem) {
    return gpu::config_of<Bwd>(lowered_backward(problem).launches().at(1)->key);
  };
  const std::string heads = "dtype=bf16 num_heads_q=16 head_dim=128 ";
  for (const char* problem : {"batch_size=32 seqlen_q=512", "batch_size=16 seqlen_q=1000 mask=causal softcap=30",
                              "batch_size=4 seqlen_q=4096 mask=causal window_left=1023",
                              "batch_size=1 seqlen_q=700 deterministic=1", "batch_size=4 seqlen_q=4096 mask=causal"}) {
    EXPECT_TRUE(config(heads + problem).last_rounds) << problem;
    EXPECT_FALSE(config(heads + problem).rounds) << problem;
    const gpu::Lowering lowering = lowered_backward(heads + problem);
    EXPECT_EQ(lowering.launches().size(), 2U) << problem;
    EXPECT_EQ(lowering.part("tile_counter")->bytes, sizeof(std::uint32_t)) << problem;
  }
  for (const char* problem :
       {"batch_size=4 seqlen_q=4096 mask=causal batch_invariant=1", "batch_size=8 seqlen_q=512 dq=0",
        "batch_size=32 seqlen_q=512 deterministic=1 dropout_p=0.1",
        "batch_size=32 seqlen_q=512 num_heads_k=4 dropout_p=0.1",
        "batch_size=32 seqlen_q=512 deterministic=1 seqused_k=1 sink=1", "batch_size=16 seqlen_q=4096",
        "batch_size=32 seqlen_q=512 seqlen_k=400 mask=causal deterministic=1"}) {
    EXPECT_FALSE(config(heads + problem).last_rounds) << problem;
  }
  EXPECT_TRUE(config("dtype=bf16 batch_size=8 seqlen_q=2048 num_heads_q=32 head_dim=64 mask=causal").last_rounds);
  // Of lengths that the device reads nobody else knows when a query's sums are complete.
  const std::string packed = "layout=thd batch_size=32 total_q=9000 total_k=9000 mask=causal ";
  EXPECT_TRUE(config(heads + packed + "max_seqlen_q=600 max_seqlen_k=600").last_rounds);
  EXPECT_TRUE(config(heads + packed + "max_seqlen_q=2000 max_seqlen_k=2000").last_rounds);
  EXPECT_FALSE(config(heads + packed + "max_seqlen_q=9000 max_seqlen_k=9000").ordered);
  EXPECT_TRUE(config(heads + packed + "max_seqlen_q=2000 max_seqlen_k=2000 window_left=500").last_rounds);
  EXPECT_EQ(lowered_backward(heads + packed + "max_seqlen_q=600 max_seqlen_k=600").launches().size(), 2U);
  EXPECT_FALSE(config("dtype=bf16 batch_size=8 seqlen_q=512 num_heads_q=8 head_dim=256 deterministic=1").last_rounds);
}

TEST(HopperBwdLowering, FitsSharedMemoryForEveryHeadDim) {
  for (int dim = 8; dim <= 256; dim += 8) {
    for (const int dim_v : {8, 64, 72, 128, 136, 192, 256}) {
      for (const char* option : {"", " dropout_p=0.1", " deterministic=1"}) {
        const std::string text =
            concat("dtype=bf16 seqlen_q=700 num_heads_q=2 head_dim=", dim, " head_dim_v=", dim_v, option);
        const gpu::KernelKey key = lowered_backward(text).launches().at(1)->key;
        EXPECT_LE(key.shared_bytes(), 227U << 10) << text;
        const auto config = gpu::config_of<Bwd>(key);
        const device::RegisterShares shares = device::register_shares(config);
        EXPECT_LE(shares.producer + shares.other + 2 * shares.consumer,
                  config.waves / 4 * (65536 / config.threads() / 8 * 8))
            << text;
      }
    }
  }
}

TEST(HopperBwdLowering, RefusesWithAReason) {
  const auto refusal = [](std::string_view text) {
    const Problem problem = parse_problem(concat("attention_backward device=cuda dtype=bf16 seqlen_q=64 ", text));
    return lower(problem, h200()).refusal;
  };
  EXPECT_EQ(refusal("head_dim=264"), "head_dim and head_dim_v must be <= 256 (got 264 and 264)");
}

TEST(HopperBwdLowering, EstimatesWhatWasMeasured) {
  const double causal = lowered_backward(kCausal).estimated_us;
  const double full =
      lowered_backward("dtype=bf16 batch_size=2 seqlen_q=8192 num_heads_q=16 head_dim=128").estimated_us;
  EXPECT_LT(causal, full / 3);
  // 2.7 TFLOP at 607 TFLOP/s, as measured.
  EXPECT_NEAR(full, 4526.0, 1000.0);
  const auto with = [](std::string_view option) {
    return lowered_backward(concat("dtype=bf16 batch_size=2 seqlen_q=8192 num_heads_q=16 head_dim=128 ", option))
        .estimated_us;
  };
  EXPECT_NEAR(with("dropout_p=0.1"), full / 0.74, full / 6);
  EXPECT_GT(with("softcap=30"), full);
  EXPECT_GT(with("bias=query[1,h,q,k]"), full);
  EXPECT_GT(with("bias=query[1,h,q,k] bias_unaligned=1"), with("bias=query[1,h,q,k]"));
}

}  // namespace
}  // namespace tilewise::backends::hopper
