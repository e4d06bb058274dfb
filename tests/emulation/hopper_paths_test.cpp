// Every path through Hopper's forward pass on the emulated machine: each row of its table of tiles, each option, and
// lengths that no tile divides. Each case says what its schedule must name.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "../support/dense_call.hpp"
#include "hopper_paths.hpp"
#include "tilewise/attention.hpp"
#include "tilewise/error.hpp"
#include "verify/verify.hpp"

namespace tilewise::test {
namespace {

/// The table's tile, whatever the number of tiles of queries.
const std::string kTable = " batch_invariant=1";

TEST(HopperPaths, EveryTile) {
  check("128x64 tiles, 2 warpgroups, 3 stages",
        "dtype=bf16 head_dim=64 num_heads_q=2 seqlen_q=100 seqlen_k=170" + kTable);
  check("256x64 tiles",
        "dtype=bf16 head_dim=64 mask=causal num_heads_q=1 batch_size=2 seqlen_q=300 seqlen_k=400" + kTable);
  check("192x64 tiles", "dtype=bf16 head_dim=128 mask=causal" + kGroups + kLengths);
  check("192x64 tiles", "dtype=f16 head_dim=128 seqlen_q=180 seqlen_k=330 num_heads_q=2" + kTable);
  check("128x128 tiles", "dtype=f16 head_dim=128 seqlen_q=200 seqlen_k=330 num_heads_q=2" + kTable);
  check("192x112 tiles", "dtype=bf16 head_dim=72 num_heads_q=2 seqlen_q=200 seqlen_k=330" + kTable);
  check("192x96 tiles", "dtype=bf16 head_dim=72 mask=causal num_heads_q=2 seqlen_q=200 seqlen_k=330" + kTable);
  check("192x80 tiles", "dtype=bf16 head_dim=96 num_heads_q=2 seqlen_q=180 seqlen_k=330" + kTable);
  check("192x112 tiles", "dtype=f16 head_dim=80 num_heads_q=1 seqlen_q=200 seqlen_k=330" + kTable);
  check("192x96 tiles", "dtype=bf16 head_dim=64 mask=causal seqused_k=1" + kGroups + kLengths + kTable);
  check("192x128 tiles", "dtype=bf16 head_dim=64 mask=causal num_heads_q=1 seqlen_q=4200 seqlen_k=130");
  check("192x128 tiles", "dtype=bf16 head_dim=64 num_heads_q=1 seqlen_q=1100 seqlen_k=300");
  check("128x96 tiles", "dtype=bf16 head_dim=192 head_dim_v=128 mask=causal num_heads_q=2 seqlen_q=200 seqlen_k=330");
  check("128x80 tiles", "dtype=bf16 head_dim=136 head_dim_v=160 num_heads_q=1 seqlen_q=200 seqlen_k=330");
  check("128x64 tiles, 2 warpgroups, 2 stages", "dtype=bf16 head_dim=256 num_heads_q=2 seqlen_q=200 seqlen_k=330");
}

/// Two blocks load each tile of keys for both.
TEST(HopperPaths, SharedKeys) {
  check("128x64 tiles, 2 warpgroups, 2 stages, pairs of blocks that share keys",
        "dtype=f16 head_dim=200 head_dim_v=256 num_heads_q=2 num_heads_k=1 seqlen_q=250 seqlen_k=1030" + kTable);
  check("128x80 tiles, 2 warpgroups, 2 stages, pairs of blocks that share keys",
        "dtype=bf16 head_dim=40 head_dim_v=136 num_heads_q=1 seqlen_q=250 seqlen_k=1100" + kTable);
  check("192x96 tiles, 3 warpgroups, 3 stages, pairs of blocks that share keys",
        "dtype=bf16 head_dim=88 num_heads_q=2 seqlen_q=370 seqlen_k=1024" + kTable);
  check("192x112 tiles, 3 warpgroups, 3 stages, pairs of blocks that share keys",
        "dtype=bf16 head_dim=72 num_heads_q=3 seqlen_q=380 seqlen_k=1030 sink=1" + kTable);
}

TEST(HopperPaths, EveryOption) {
  const std::string bf16 = "dtype=bf16 head_dim=64 num_heads_q=2 seqlen_q=150 seqlen_k=270" + kTable,
                    f16 = "dtype=f16 head_dim=64 num_heads_q=2 seqlen_q=150 seqlen_k=270" + kTable;
  check("192x96 tiles", bf16 + " alibi_slopes=[h]");
  check("192x64 tiles", f16 + " softcap=20 mask=causal");
  check("192x64 tiles", bf16 + " softcap=20");
  check("128x128 tiles", f16 + " dropout_p=0.25 mask=causal");
  check("256x64 tiles", bf16 + " window_left=70 window_right=20");
  check("192x64 tiles, 3 warpgroups, 8 stages", bf16 + " window_left=70 window_right=20 seqused_q=1 seqused_k=1");
  const std::string middle = "dtype=bf16 head_dim=128 num_heads_q=2 seqlen_q=200 seqlen_k=270" + kTable;
  check("192x80 tiles", middle + " alibi_slopes=[h]");
  check("192x64 tiles", middle + " alibi_slopes=[h] mask=causal");
  check("128x96 tiles", middle + " dropout_p=0.5");  // a bound that is no normal number of bf16
  check("192x64 tiles", middle + " window_left=70 window_right=20");
  check("128x64 tiles", "dtype=bf16 head_dim=256 num_heads_q=2 seqlen_q=150 seqlen_k=270 dropout_p=0.25" + kTable);
}

TEST(HopperPaths, RowsOfNoSequence) {
  const std::string packed =
      "dtype=bf16 head_dim=64 layout=thd batch_size=3 max_seqlen_q=70 max_seqlen_k=90 "
      "total_q=310 total_k=290 clear_rest=1" +
      kGroups;
  check("192x128 tiles", packed);
  check("128x128 tiles", packed + " mask=causal", false, "attention_backward ");
}

/// A bias that TMA loads: each dtype, each dimension that it may lack, heads packed, and rows that start
/// nowhere, whose scores load their own.
TEST(HopperPaths, BiasInBoxes) {
  const std::string bf16 = "dtype=bf16 head_dim=128 num_heads_q=2 seqlen_q=150 seqlen_k=270" + kTable,
                    f16 = "dtype=f16 head_dim=64 batch_size=2 num_heads_q=2 seqlen_q=150 seqlen_k=200" + kTable;
  check("192x64 tiles, 3 warpgroups, 3 stages, bias in boxes", bf16 + " bias=query[b,h,q,k]");
  check("192x80 tiles, 3 warpgroups, 3 stages, bias in boxes", bf16 + " bias=bool[b,h,q,k]");
  const std::string narrow = "dtype=bf16 head_dim=64 num_heads_q=2 seqlen_q=300 seqlen_k=270" + kTable;
  check("256x48 tiles, 4 warpgroups, 4 stages, bias in boxes", narrow + " bias=query[b,h,q,k] mask=causal");
  check("256x48 tiles, 4 warpgroups", narrow + " bias=bool[b,1,1,k]");
  check("192x64 tiles, 3 warpgroups, 4 stages, bias in boxes",
        "dtype=f16 head_dim=40 num_heads_q=2 seqlen_q=130 seqlen_k=184 bias=query[1,h,q,k]" + kTable);
  // Warpgroups without rows, which get no boxes.
  check("192x64 tiles, 3 warpgroups, 4 stages, bias in boxes",
        "dtype=bf16 head_dim=64 num_heads_q=2 seqlen_q=50 seqlen_k=64 bias=bool[b,1,q,k]" + kTable);
  check("bias in boxes",
        "dtype=bf16 head_dim=64 num_heads_q=8 num_heads_k=2 seqlen_q=20 seqlen_k=136 bias=query[b,h,q,k]" + kTable);
  check("bias in boxes", bf16 + " bias=f32[b,h,q,k] sink=1 mask=causal");
  check("bias in boxes", f16 + " bias=query[b,h,1,k] mask=causal window_left=90");
  check("bias in boxes", f16 + " bias=bool[b,1,q,k]");
  check("bias in boxes", f16 + " bias=bool[1,h,1,k] softcap=20 alibi_slopes=[h]");
  check("128x64 tiles, 2 warpgroups, 2 stages, bias in boxes",
        "dtype=bf16 head_dim=192 seqlen_q=100 seqlen_k=130 bias=f32[b,h,q,k]" + kTable);
  const std::string wide = "dtype=bf16 head_dim=256 num_heads_q=2 seqlen_q=100 seqlen_k=130" + kTable;
  check("128x64 tiles, 2 warpgroups, 2 stages, bias in boxes", wide + " bias=query[b,h,q,k]");
  check("128x32 tiles, 2 warpgroups, 3 stages, bias in boxes", wide + " bias=f32[b,h,q,k] dropout_p=0.25");
  check("128x32 tiles", wide + " bias=query[b,h,q,k] dropout_p=0.25");  // in rows of 64 bytes
  check("128x32 tiles", wide + " bias=bool[b,1,q,k] dropout_p=0.25");   // in rows of 32 bytes
  const std::string packed = "dtype=bf16 head_dim=64 batch_size=2 num_heads_q=6 num_heads_k=2 seqlen_q=25 seqlen_k=200";
  check("heads packed", packed + " bias=query[b,h,q,k] seqused_k=1");
  check("heads packed", packed + " bias=f32[1,1,q,k]");
  check("heads packed", packed + " bias=bool[b,h,1,k]");
  check("heads packed",
        "dtype=bf16 head_dim=64 layout=thd batch_size=2 max_seqlen_q=25 max_seqlen_k=160 total_q=40 total_k=300 "
        "num_heads_q=6 num_heads_k=2 bias=bool[b,1,1,k]");
}
TEST(HopperPaths, BiasOfEachScore) {
  const std::string wide = "dtype=bf16 head_dim=256 num_heads_q=2 seqlen_q=100 seqlen_k=130" + kTable;
  check("128x32 tiles, 2 warpgroups, 4 stages", wide + " bias=f32[b,h,q,1]");
  check("128x64 tiles",
        "dtype=bf16 head_dim=64 num_heads_q=2 seqlen_q=150 seqlen_k=270 leftpad_k=1 bias=bool[b,h,q,k]" + kTable);
  check("128x64 tiles", "dtype=bf16 head_dim=64 num_heads_q=2 seqlen_q=150 seqlen_k=270 bias=f32[b,h,q,1]" + kTable);
}

/// Two warpgroups where tiles are few, so that more multiprocessors have one.
TEST(HopperPaths, FewTiles) {
  const std::string few = " num_heads_q=4 num_heads_k=1 seqlen_q=100 seqlen_k=520";
  check("128x128 tiles, 2 warpgroups, 2 stages", "dtype=bf16 head_dim=128" + few);
  check("128x128 tiles, 2 warpgroups, 4 stages", "dtype=bf16 head_dim=48 mask=causal num_heads_q=2 seqlen_q=250");
  check("128x64 tiles, 2 warpgroups", "dtype=f16 head_dim=64 softcap=20" + few);
  check("128x96 tiles, 2 warpgroups", "dtype=fp8_e4m3 head_dim=128" + few);
}

/// Keys in parts: their number, parts that see nothing, and what combine adds.
TEST(HopperPaths, PartsOfTheKeysByNight) {
  const std::string few = " seqlen_q=20 seqlen_k=1500 num_heads_q=2 num_heads_k=1";
  check("splits", "dtype=bf16 head_dim=128 mask=causal" + few);
  check("splits", "dtype=f16 head_dim=64 head_dim_v=40 sink=query window_left=1200 mask=causal" + few);
  check("splits", "dtype=bf16 head_dim=256 alibi_slopes=[h]" + few);
  check("splits", "dtype=bf16 head_dim=128 bias=f32[b,h,q,k] dropout_p=0.25 softcap=9" + few);
  check("splits",
        "dtype=bf16 head_dim=72 batch_size=2 seqused_q=1 seqused_k=1 leftpad_k=1 mask=causal seqlen_q=20 seqlen_k=1800 "
        "num_heads_q=2 num_heads_k=1");
  check("splits", "dtype=bf16 head_dim=128 seqlen_q=190 seqlen_k=1500 num_heads_q=1 mask=causal");
  check("splits",
        "dtype=bf16 head_dim=64 layout=thd batch_size=2 max_seqlen_q=20 max_seqlen_k=1500 total_q=38 "
        "total_k=2400 num_heads_q=2 num_heads_k=1");
  check("splits", "dtype=bf16 head_dim=128 seqused_k=1" + few, true);
  check("splits",
        "dtype=fp8_e4m3 head_dim=128 q_scale=batch_head k_scale=batch_head v_scale=head sink=1 mask=causal" + few);
}

TEST(HopperPaths, HeadsOfAGroupInOneTile) {
  check("heads packed", "dtype=bf16 head_dim=128 num_heads_q=8 num_heads_k=2 seqlen_q=3 seqlen_k=400");
  check("heads packed", "dtype=bf16 head_dim=64 mask=causal num_heads_q=5 num_heads_k=1 seqlen_q=30 seqlen_k=200");
  const std::string fp8 = "dtype=fp8_e4m3 head_dim=64 num_heads_q=6 num_heads_k=2 seqlen_q=7 seqlen_k=300";
  check("heads packed", fp8 + " q_scale=batch_head k_scale=head v_scale=batch_head batch_size=2");
  check("heads packed", fp8 + " q_scale=tensor mask=causal sink=1");
  const std::string schedule =
      plan(parse_problem("attention_forward " + fp8 + " q_scale=head"), {std::string(kHopper)}).schedule();
  EXPECT_EQ(schedule.find("packed"), std::string::npos) << "heads of different factors are: " << schedule;
}

TEST(HopperPaths, LengthsOfSequences) {
  const std::string packed = " layout=thd batch_size=3 max_seqlen_q=200 max_seqlen_k=300 total_q=400 total_k=600";
  check("scheduled by a counter", "dtype=bf16 head_dim=64 mask=causal" + kGroups + packed);
  check("scheduled by a counter", "dtype=bf16 head_dim=128 seqused_q=1 seqused_k=1 leftpad_k=1" + kGroups + kLengths);
  check("scheduled by a counter", "dtype=bf16 head_dim=256 mask=causal seqused_k=1 num_heads_q=2" + kLengths);
}

TEST(HopperPaths, EveryOptionAtOnce) {
  check("128x32 tiles",
        "dtype=f16 head_dim=40 head_dim_v=24 mask=causal window_left=20 softcap=5 bias=query[b,h,q,k] alibi_slopes=[h] "
        "sink=query dropout_p=0.25 seed_tensor=1 seqused_q=1 seqused_k=1 leftpad_k=1" +
            kGroups + kLengths);
}

TEST(HopperPaths, LengthsOfZeroAndOne) {
  const std::string kernel = "dtype=bf16 head_dim=64 num_heads_q=2" + kTable;
  for (const char* lengths : {" seqlen_q=1 seqlen_k=1", " seqlen_q=65 seqlen_k=0"})
    check("128x64 tiles", kernel + lengths);
  check("256x64 tiles", kernel + " seqlen_q=257 seqlen_k=64");
  check("", kernel + " seqlen_q=0 seqlen_k=10");
}

TEST(HopperPaths, SpecialValues) {
  check("256x64 tiles", "dtype=bf16 head_dim=64 num_heads_q=2 seqlen_q=200 seqlen_k=200" + kTable, true);
  check("scheduled by a counter", "dtype=bf16 head_dim=128 seqused_q=1 seqused_k=1 leftpad_k=1" + kGroups + kLengths,
        true);
}

TEST(HopperPaths, Fp8) {
  const std::string fp8 = "dtype=fp8_e4m3", many = " num_heads_q=2 seqlen_q=200 seqlen_k=330" + kTable;
  check("192x96 tiles",
        fp8 + " head_dim=128 mask=causal q_scale=head k_scale=batch_head v_scale=tensor" + kGroups + kLengths);
  check("192x128 tiles", fp8 + " head_dim=64 out_dtype=f16 v_scale=batch_head" + many);
  check("128x96 tiles", fp8 + " head_dim=256 mask=causal" + many);
  check("192x96 tiles", fp8 + " head_dim=80 head_dim_v=48" + many);
  check("192x96 tiles", fp8 + " head_dim=64 head_dim_v=128 num_heads_q=2 seqlen_q=70 seqlen_k=1" + kTable);
  check("scheduled by a counter", fp8 + " head_dim=128 seqused_q=1 seqused_k=1 leftpad_k=1" + kGroups + kLengths, true);
  check("128x64 tiles", fp8 +
                            " head_dim=64 mask=causal window_left=20 softcap=5 bias=f32[b,h,q,k] alibi_slopes=[h] "
                            "sink=1 dropout_p=0.25 seed_tensor=1 seqused_k=1 q_scale=head k_scale=tensor" +
                            kGroups + kLengths);
}

TEST(HopperPaths, Fp8WithSeveralOptions) {
  check("128x32 tiles, 2 warpgroups, 3 stages",
        "dtype=fp8_e4m3 head_dim=256 mask=causal softcap=9 dropout_p=0.25 bias=f32[b,h,q,k] seqused_k=1 q_scale=head" +
            kGroups + kLengths);
}

/// Of each head another: a line on either side of the diagonal, too steep for one, so steep that it comes after the
/// scale, rising, none. Tiles of keys lie before queries, around them and behind them.
TEST(HopperPaths, SlopesOfEveryKind) {
  const std::vector<double> slopes = {0.05, 1.0, 7.5, 9.0, 400.0, 1e30, -0.05, 0.0};
  for (const Mask mask : {Mask::none, Mask::causal}) {
    for (const std::int64_t dim : {64, 128}) {
      const Sizes sizes{.seqlen_q = 200, .seqlen_k = 430, .heads_q = 8, .dim = dim, .dim_v = 16, .dtype = DType::bf16};
      DenseCall expected(sizes), call(sizes);
      expected.alibi_slopes = call.alibi_slopes = Tensor(DType::f32, {8});
      call.alibi_slopes.fill_with([&](auto position) { return slopes[static_cast<std::size_t>(position[0])]; });
      expected.options.mask = call.options.mask = mask;
      expected.forward();
      call.forward(std::string(kHopper));
      EXPECT_LT(largest_difference(call.out, expected.out), 0.02) << dim;
      EXPECT_LT(largest_difference(call.lse, expected.lse), 1e-3) << dim;
    }
  }
}

/// Scores far apart: a row's reference moves, and weights that pass what fp32 holds are computed again.
class ScoresFarApart : public testing::TestWithParam<double> {};  // of dropout_p

TEST_P(ScoresFarApart, AreWeighedAgain) {
  for (const double scale : {1.0, 30.0}) {
    const Sizes sizes{.seqlen_q = 100, .seqlen_k = 400, .heads_q = 2, .dim = 128, .dim_v = 128, .dtype = DType::bf16};
    DenseCall expected(sizes), call(sizes);
    expected.options.softmax_scale = call.options.softmax_scale = scale;
    expected.options.dropout_p = call.options.dropout_p = GetParam();
    expected.forward();
    call.forward(std::string(kHopper));
    for (std::int64_t i = 0; i < call.out.size(); ++i) {
      const double bound = 0.02 * std::max(1.0, std::abs(expected.out.at(i)));
      ASSERT_NEAR(call.out.at(i), expected.out.at(i), bound);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HopperPaths, ScoresFarApart, testing::Values(0.0, 0.25));

/// Scores that rise from -300 to 0 or fall to it, with a reference that is moved below 0 again and again.
TEST(HopperPaths, ScoresBelowZero) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const bool rising : {true, false}) {
      const Sizes sizes{.seqlen_q = 70, .seqlen_k = 430, .heads_q = 1, .dim = 128, .dim_v = 128, .dtype = dtype};
      DenseCall expected(sizes), call(sizes);
      const auto ones = [](auto) { return 1.0; };
      const auto line = [&](auto position) {
        const auto key = static_cast<double>(position[1]);
        return -(rising ? 430.0 - key : key) * 300.0 / 430.0 / 128.0;
      };
      expected.q.fill_with(ones), call.q.fill_with(ones);
      expected.k.fill_with(line), call.k.fill_with(line);
      expected.options.softmax_scale = call.options.softmax_scale = 1.0;
      expected.forward();
      call.forward(std::string(kHopper));
      EXPECT_LT(largest_difference(call.out, expected.out), 0.02) << rising;
      EXPECT_LT(largest_difference(call.lse, expected.lse), 1e-3) << rising;
    }
  }
}

/// Scores that rise by so much from tile to tile that a reference stays, moves by one step, or jumps, of one row this
/// and of its neighbour that: all are right, and none has other bits than among rows of its own kind.
TEST(HopperPaths, ReferencesThatStepAndJump) {
  const std::vector<double> rises = {0.1, 0.5, 1.0, 1.5, 3.0, 9.0};  // of 90 nats a tile of 64 keys
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Sizes sizes{.seqlen_q = 48, .seqlen_k = 430, .heads_q = 1, .dim = 128, .dim_v = 128, .dtype = dtype};
    const auto run = [&](const std::string& implementation, auto rise_of_row) {
      DenseCall call(sizes);
      call.options.softmax_scale = 1.0;
      call.q.fill_with([&](auto position) { return rise_of_row(static_cast<std::size_t>(position[1])); });
      call.k.fill_with([](auto position) { return static_cast<double>(position[1]) * 90.0 / 64.0 / 128.0; });
      call.forward(implementation);
      return call;
    };
    const auto mixed = [&](std::size_t row) { return rises[row % rises.size()]; };
    const DenseCall expected = run("reference", mixed), call = run(std::string(kHopper), mixed);
    EXPECT_LT(largest_difference(call.out, expected.out), 0.02);
    EXPECT_LT(largest_difference(call.lse, expected.lse), 2e-3);
    for (std::size_t kind = 0; kind < rises.size(); ++kind) {
      const DenseCall alike = run(std::string(kHopper), [&](std::size_t) { return rises[kind]; });
      for (std::int64_t row = static_cast<std::int64_t>(kind); row < sizes.seqlen_q; row += std::ssize(rises)) {
        EXPECT_EQ(call.lse.at(row), alike.lse.at(row)) << row;
        for (std::int64_t i = row * sizes.dim_v; i < (row + 1) * sizes.dim_v; ++i)
          ASSERT_EQ(call.out.at(i), alike.out.at(i)) << row;
      }
    }
  }
}

/// In fp8 weights that have been rounded are looked at, not scores: of rows whose scores rise by little, by more than
/// e4m3 holds, and by more than fp32 holds, each gets the bits that it has among rows of its own kind.
TEST(HopperPaths, GreatAndLostWeights) {
  const std::vector<double> rises = {0.015625, 0.03125, 0.125, 0.5, 1.0, 4.0};  // of 135 nats a tile of 96 keys
  const Sizes sizes{.seqlen_q = 48, .seqlen_k = 430, .heads_q = 1, .dim = 128, .dim_v = 128, .dtype = DType::fp8_e4m3};
  for (const double sign : {1.0, -1.0}) {
    const auto run = [&](const std::string& implementation, auto rise_of_row) {
      DenseCall call(sizes);
      call.out = Tensor(DType::bf16, {1, sizes.seqlen_q, 1, sizes.dim_v});
      call.options.softmax_scale = 1.0;
      call.q.fill_with([&](auto position) { return sign * rise_of_row(static_cast<std::size_t>(position[1])); });
      call.k.fill_with([](auto position) { return static_cast<double>(position[1]) * 90.0 / 64.0 / 128.0; });
      call.forward(implementation);
      return call;
    };
    // Of a lane's two rows, and of those of a warp, one is of this kind and another of that.
    const auto kind_of = [&](std::size_t row) { return row / 8 % 2 == 0 ? 0 : (row + row / 16) % rises.size(); };
    const auto mixed = [&](std::size_t row) { return rises[kind_of(row)]; };
    const DenseCall expected = run("reference", mixed), call = run(std::string(kHopper), mixed);
    EXPECT_LT(largest_difference(call.out, expected.out), 0.15) << sign;
    for (std::int64_t row = 0; row < sizes.seqlen_q; ++row) {
      const double bound = 2e-3 * std::max(1.0, std::abs(expected.lse.at(row)));
      EXPECT_NEAR(call.lse.at(row), expected.lse.at(row), bound) << row;
    }
    for (std::size_t kind = 0; kind < rises.size(); ++kind) {
      const DenseCall alike = run(std::string(kHopper), [&](std::size_t) { return rises[kind]; });
      for (std::int64_t row = 0; row < sizes.seqlen_q; ++row) {
        if (kind_of(static_cast<std::size_t>(row)) != kind) continue;
        EXPECT_EQ(call.lse.at(row), alike.lse.at(row)) << row;
        for (std::int64_t i = row * sizes.dim_v; i < (row + 1) * sizes.dim_v; ++i)
          ASSERT_EQ(call.out.at(i), alike.out.at(i)) << row;
      }
    }
  }
}

/// A row whose first key begins a tile that all rows see whole has no reference yet, and weights by none would vanish.
TEST(HopperPaths, FirstKeysInTilesWithoutMasks) {
  const Sizes sizes{.seqlen_q = 128, .seqlen_k = 430, .heads_q = 1, .dim = 128, .dim_v = 64, .dtype = DType::fp8_e4m3};
  DenseCall expected(sizes), call(sizes);
  for (DenseCall* each : {&expected, &call}) {
    each->out = Tensor(DType::bf16, {1, sizes.seqlen_q, 1, sizes.dim_v});
    each->q.fill_with([](auto) { return 1.0; });
    each->k.fill_with([](auto position) { return position[1] % 3 == 0 ? -1.0 : -1.125; });
    each->options.softmax_scale = 1.0;
    each->options.window_left = 430 - 1 - 2 * 96;  // the last query's keys begin with the third tile of 96
    each->options.batch_invariant = true;          // keys come in one part
  }
  expected.forward();
  call.forward(std::string(kHopper));
  EXPECT_LT(largest_difference(call.out, expected.out), 0.05);
  EXPECT_LT(largest_difference(call.lse, expected.lse), 2e-2);
}

TEST(HopperPaths, TheSeedOfTheOrderChangesNoBit) {
  std::vector<double> first;
  for (const char* seed : {"0", "1", "77"}) {
    setenv("TILEWISE_EMULATION_SEED", seed, 1);
    DenseCall call({.seqlen_q = 200, .seqlen_k = 330, .heads_q = 2, .dim = 128, .dim_v = 128, .dtype = DType::bf16});
    call.options.mask = Mask::causal;
    call.forward(std::string(kHopper));
    if (first.empty()) first = call.out.values();
    EXPECT_EQ(call.out.values(), first) << seed;
  }
  unsetenv("TILEWISE_EMULATION_SEED");
}

TEST(HopperPaths, RefusesWithReasons) {
  const auto reason = [](const char* text) {
    for (const ExplainRow& row : explain(parse_problem(text), {std::string(kHopper)}).rows)
      if (row.implementation == kHopper) return row.reason;
    return std::string("is not in the table");
  };
  EXPECT_EQ(reason("attention_forward dtype=f32 seqlen_q=8 head_dim=64"), "does not support f32");
  EXPECT_EQ(reason("attention_forward dtype=bf16 seqlen_q=8 head_dim=60"),
            "head_dim and head_dim_v must be multiples of 8 (got 60 and 60)");
  EXPECT_EQ(reason("attention_forward dtype=fp8_e4m3 seqlen_q=8 head_dim=72"),
            "head_dim and head_dim_v must be multiples of 16 (got 72 and 72)");
  EXPECT_EQ(reason("attention_backward dtype=bf16 seqlen_q=8 head_dim=264 head_dim_v=128"),
            "head_dim and head_dim_v must be <= 256 (got 264 and 128)");
  std::uint64_t seed = 0;
  while (verify::draws_aligned_rows(seed)) ++seed;
  const AnyProblem fp8 = parse_problem("attention_forward dtype=fp8_e4m3 seqlen_q=8 head_dim=64 num_heads_q=2");
  const verify::Report report = verify::check_implementation(fp8, kHopper, seed);
  EXPECT_EQ(report.status, verify::Status::refused) << report.to_string();
}

}  // namespace
}  // namespace tilewise::test
