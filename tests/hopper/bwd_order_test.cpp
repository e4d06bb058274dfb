// Where dq's sums have an order, who rounds the last ones, and which heads of a group are a share.
#include <algorithm>
#include <cstddef>
#include <string>

#include "backends/cuda/hopper/bwd_config.hpp"
#include "backends/cuda/hopper/bwd_schedule.hpp"
#include "support.hpp"

namespace tilewise::backends::hopper {
namespace {

TEST(HopperBwdOrder, OrdersTheSumsOfDqWhereAsked) {
  const std::string problem = "dtype=bf16 seqlen_q=200 num_heads_q=2 head_dim=64 ";
  for (const char* asks : {"deterministic=1", "batch_invariant=1"}) {
    const gpu::Lowering lowering = lowered_backward(problem + asks);
    EXPECT_TRUE(gradients_config(lowering).ordered);
    EXPECT_EQ(lowering.part("turns")->bytes, 2U * 2U * sizeof(float));  // heads, tiles of queries
    const gpu::Lowering drops = lowered_backward(problem + asks + " dropout_p=0.1");
    EXPECT_EQ(drops.part("turns")->bytes, 2U * 2U * 4U * sizeof(float));  // and warps, since none is left for couriers
  }
  for (const char* not_so : {"", "deterministic=1 dq=0"}) {
    const gpu::Lowering lowering = lowered_backward(problem + not_so);
    EXPECT_FALSE(gradients_config(lowering).ordered);
    EXPECT_EQ(lowering.part("turns"), nullptr);
  }
}

/// Where nobody asks for an order, and it is quicker.
TEST(HopperBwdOrder, OrdersTheSumsOfDqOfShortSequences) {
  const auto ordered = [](const std::string& problem) {
    return gradients_config(lowered_backward(problem)).ordered != 0;
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
  EXPECT_FALSE(gradients_config(lowered_backward(wide + "head_dim=256")).persistent);
  EXPECT_FALSE(ordered(wide + "head_dim=192"));
}

/// By the warps that multiply dQ beside dk and dv, too.
TEST(HopperBwdOrder, OrdersTheSumsOfDqOfWideHeadsThatOwnThem) {
  const auto schedule = [](const std::string& text) {
    return lowered_backward("dtype=bf16 num_heads_q=16 head_dim=192 head_dim_v=128 " + text).schedule;
  };
  const std::string own = "2 warpgroups that multiply dq too, 2 stages, scheduled by a counter";
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
TEST(HopperBwdOrder, GivesSharesOfAGroupTilesOfTheirOwn) {
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

/// Where blocks round dq, no launch does, and a second counter says which queries are next.
TEST(HopperBwdOrder, RoundsDqWhereItsLastSumsAreKnown) {
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
TEST(HopperBwdOrder, RoundsDqWithItsLastSums) {
  const auto config = [](const std::string& problem) { return gradients_config(lowered_backward(problem)); };
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

}  // namespace
}  // namespace tilewise::backends::hopper
