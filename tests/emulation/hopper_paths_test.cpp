// Every path through Hopper's kernels on the emulated machine: each row of their table of tiles, each option, and
// lengths that no tile divides. Each case says what its schedule must name.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../support/dense_call.hpp"
#include "tilewise/attention.hpp"
#include "tilewise/error.hpp"
#include "verify/verify.hpp"

namespace tilewise::test {
namespace {

constexpr std::string_view kHopper = "emulation.sm90";

/// Rows that start on 16 bytes, as the copy engine wants them; with NaN and infinities among the inputs, or none.
std::uint64_t aligned_seed(bool special) {
  std::uint64_t seed = 0;
  while (!verify::draws_aligned_rows(seed) || verify::draws_special_values(seed) != special) ++seed;
  return seed;
}

/// Runs a problem whose schedule names `path`.
void check(std::string_view path, const std::string& text, bool special = false,
           const std::string& operation = "attention_forward ") {
  const Problem problem = parse_problem(operation + text);
  const std::string schedule = plan(problem, {std::string(kHopper)}).schedule();
  EXPECT_NE(schedule.find(path), std::string::npos) << "another path: " << schedule << "\n  " << text;
  const verify::Report report = verify::check_implementation(problem, kHopper, aligned_seed(special));
  EXPECT_EQ(report.status, verify::Status::passed) << report.to_string();
}

const std::string kGroups = " num_heads_q=4 num_heads_k=2", kLengths = " batch_size=2 seqlen_q=200 seqlen_k=330";

/// The table's tile, whatever the number of tiles of queries.
const std::string kTable = " batch_invariant=1";

TEST(HopperPaths, EveryTile) {
  check("256x64 tiles",
        "dtype=bf16 head_dim=64 mask=causal num_heads_q=1 batch_size=2 seqlen_q=300 seqlen_k=400" + kTable);
  check("192x64 tiles", "dtype=bf16 head_dim=128 mask=causal" + kGroups + kLengths);
  check("192x64 tiles", "dtype=f16 head_dim=128 seqlen_q=200 seqlen_k=330 num_heads_q=2");
  check("192x96 tiles", "dtype=bf16 head_dim=72 num_heads_q=2 seqlen_q=200 seqlen_k=330" + kTable);
  check("192x96 tiles", "dtype=bf16 head_dim=64 mask=causal num_heads_q=1 seqlen_q=2100 seqlen_k=130");
  check("192x128 tiles", "dtype=bf16 head_dim=64 num_heads_q=1 seqlen_q=1100 seqlen_k=300");
  check("128x96 tiles", "dtype=bf16 head_dim=192 head_dim_v=128 mask=causal num_heads_q=2 seqlen_q=200 seqlen_k=330");
  check("128x80 tiles", "dtype=bf16 head_dim=136 head_dim_v=160 num_heads_q=1 seqlen_q=200 seqlen_k=330");
  check("128x64 tiles, 2 warpgroups, 2 stages", "dtype=bf16 head_dim=256 num_heads_q=2 seqlen_q=200 seqlen_k=330");
}

TEST(HopperPaths, EveryOption) {
  const std::string bf16 = "dtype=bf16 head_dim=64 num_heads_q=2 seqlen_q=150 seqlen_k=270" + kTable,
                    f16 = "dtype=f16 head_dim=64 num_heads_q=2 seqlen_q=150 seqlen_k=270" + kTable;
  check("192x64 tiles", bf16 + " alibi_slopes=[h]");
  check("192x64 tiles", f16 + " softcap=20 mask=causal");
  check("192x64 tiles", bf16 + " softcap=20");
  check("128x96 tiles", f16 + " dropout_p=0.25 mask=causal");
  check("256x64 tiles", bf16 + " window_left=70 window_right=20");
}

/// A bias that the copy engine brings: each dtype, each dimension that it may lack, heads packed, and rows that start
/// nowhere, whose scores load their own.
TEST(HopperPaths, BiasInBoxes) {
  const std::string bf16 = "dtype=bf16 head_dim=128 num_heads_q=2 seqlen_q=150 seqlen_k=270" + kTable,
                    f16 = "dtype=f16 head_dim=64 batch_size=2 num_heads_q=2 seqlen_q=150 seqlen_k=200" + kTable;
  check("192x64 tiles, 3 warpgroups, 3 stages, bias in boxes", bf16 + " bias=query[b,h,q,k]");
  check("bias in boxes", bf16 + " bias=f32[b,h,q,k] sink=1 mask=causal");
  check("bias in boxes", f16 + " bias=query[b,h,1,k] mask=causal window_left=90");
  check("bias in boxes", f16 + " bias=bool[b,1,q,k]");
  check("bias in boxes", f16 + " bias=bool[1,h,1,k] softcap=20 alibi_slopes=[h]");
  check("128x64 tiles, 2 warpgroups, 2 stages, bias in boxes",
        "dtype=bf16 head_dim=192 seqlen_q=100 seqlen_k=130 bias=f32[b,h,q,k]" + kTable);
  const std::string wide = "dtype=bf16 head_dim=256 num_heads_q=2 seqlen_q=100 seqlen_k=130" + kTable;
  check("128x64 tiles, 2 warpgroups, 2 stages, bias in boxes", wide + " bias=query[b,h,q,k]");
  check("128x32 tiles, 2 warpgroups, 3 stages, bias in boxes", wide + " bias=f32[b,h,q,k] dropout_p=0.25");
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
TEST(HopperPaths, PartsOfTheKeys) {
  const std::string few = " seqlen_q=20 seqlen_k=1500 num_heads_q=2 num_heads_k=1";
  check("splits", "dtype=bf16 head_dim=128 mask=causal" + few);
  check("splits", "dtype=f16 head_dim=64 head_dim_v=40 sink=query window_left=1200 mask=causal" + few);
  check("splits", "dtype=bf16 head_dim=256 alibi_slopes=[h]" + few);
  check("splits", "dtype=bf16 head_dim=128 bias=f32[b,h,q,k] dropout_p=0.25 softcap=9" + few);
  check("splits", "dtype=bf16 head_dim=72 batch_size=2 seqused_q=1 seqused_k=1 leftpad_k=1 mask=causal" + few);
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
  check("dealt by a counter", "dtype=bf16 head_dim=64 mask=causal" + kGroups + packed);
  check("dealt by a counter", "dtype=bf16 head_dim=128 seqused_q=1 seqused_k=1 leftpad_k=1" + kGroups + kLengths);
  check("dealt by a counter", "dtype=bf16 head_dim=256 mask=causal seqused_k=1 num_heads_q=2" + kLengths);
}

TEST(HopperPaths, EveryOptionAtOnce) {
  check("128x32 tiles",
        "dtype=f16 head_dim=40 head_dim_v=24 mask=causal window_left=20 softcap=5 bias=query[b,h,q,k] alibi_slopes=[h] "
        "sink=query dropout_p=0.25 seed_tensor=1 seqused_q=1 seqused_k=1 leftpad_k=1" +
            kGroups + kLengths);
}

TEST(HopperPaths, LengthsOfZeroAndOne) {
  const std::string kernel = "dtype=bf16 head_dim=64 num_heads_q=2" + kTable;
  for (const char* lengths : {" seqlen_q=1 seqlen_k=1", " seqlen_q=65 seqlen_k=0", " seqlen_q=257 seqlen_k=64"})
    check("256x64 tiles", kernel + lengths);
  check("", kernel + " seqlen_q=0 seqlen_k=10");
}

TEST(HopperPaths, SpecialValues) {
  check("256x64 tiles", "dtype=bf16 head_dim=64 num_heads_q=2 seqlen_q=200 seqlen_k=200" + kTable, true);
  check("dealt by a counter", "dtype=bf16 head_dim=128 seqused_q=1 seqused_k=1 leftpad_k=1" + kGroups + kLengths, true);
}

TEST(HopperPaths, Fp8) {
  const std::string fp8 = "dtype=fp8_e4m3", many = " num_heads_q=2 seqlen_q=200 seqlen_k=330" + kTable;
  check("192x96 tiles",
        fp8 + " head_dim=128 mask=causal q_scale=head k_scale=batch_head v_scale=tensor" + kGroups + kLengths);
  check("192x128 tiles", fp8 + " head_dim=64 out_dtype=f16 v_scale=batch_head" + many);
  check("128x96 tiles", fp8 + " head_dim=256 mask=causal" + many);
  check("192x96 tiles", fp8 + " head_dim=80 head_dim_v=48" + many);
  check("192x96 tiles", fp8 + " head_dim=64 head_dim_v=128 num_heads_q=2 seqlen_q=70 seqlen_k=1" + kTable);
  check("dealt by a counter", fp8 + " head_dim=128 seqused_q=1 seqused_k=1 leftpad_k=1" + kGroups + kLengths, true);
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

/// Scores far apart: a row's reference moves, and weights that pass what fp32 holds are computed again.
TEST(HopperPaths, ScoresFarApart) {
  for (const double scale : {1.0, 30.0}) {
    const Sizes sizes{.seqlen_q = 100, .seqlen_k = 400, .heads_q = 2, .dim = 128, .dim_v = 128, .dtype = DType::bf16};
    DenseCall expected(sizes), call(sizes);
    expected.options.softmax_scale = call.options.softmax_scale = scale;
    expected.forward();
    call.forward(std::string(kHopper));
    for (std::int64_t i = 0; i < call.out.size(); ++i) {
      const double bound = 0.02 * std::max(1.0, std::abs(expected.out.at(i)));
      ASSERT_NEAR(call.out.at(i), expected.out.at(i), bound);
    }
  }
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

void check_backward(std::string_view path, const std::string& text, bool special = false) {
  check(path, text, special, "attention_backward ");
}

TEST(HopperPaths, BackwardOfEveryTile) {
  check_backward("hopper_bwd 128x64 tiles, 2 warpgroups, 3 stages", "dtype=bf16 head_dim=128 num_heads_q=2" + kLengths);
  check_backward("128x64 tiles", "dtype=f16 head_dim=128 mask=causal" + kGroups + kLengths);
  check_backward("128x64 tiles", "dtype=bf16 head_dim=96 mask=causal num_heads_q=2 seqlen_q=260 seqlen_k=130");
  check_backward("128x64 tiles", "dtype=bf16 head_dim=40 head_dim_v=104 mask=causal num_heads_q=2" + kLengths);
  check_backward("hopper_bwd 128x128 tiles, 2 warpgroups, 2 stages", "dtype=bf16 head_dim=64 mask=causal" + kLengths);
  check_backward("128x128 tiles", "dtype=f16 head_dim=24 head_dim_v=64" + kGroups + kLengths);
}

/// Head dims for which two warpgroups share 64 keys.
TEST(HopperPaths, BackwardOfWideHeads) {
  const std::string lengths = " seqlen_q=100 seqlen_k=170";
  check_backward("hopper_bwd 64x64 tiles, 2 warpgroups, 2 stages", "dtype=bf16 head_dim=256 num_heads_q=2" + lengths);
  check_backward("64x64 tiles", "dtype=f16 head_dim=256 mask=causal" + kGroups + lengths);
  check_backward("64x64 tiles, 2 warpgroups, 3 stages",
                 "dtype=bf16 head_dim=192 head_dim_v=128 mask=causal num_heads_q=2" + lengths);
  check_backward("64x64 tiles",
                 "dtype=bf16 head_dim=136 head_dim_v=232 num_heads_q=2 window_left=50 window_right=20" + lengths);
  check_backward("64x64 tiles", "dtype=f16 head_dim=80 head_dim_v=160 sink=query dsink=1 dlse=1" + kGroups + lengths);
  check_backward("64x64 tiles",
                 "dtype=bf16 head_dim=160 layout=thd max_seqlen_q=100 max_seqlen_k=150 batch_size=4 "
                 "mask=causal" +
                     kGroups);
  check_backward("64x64 tiles", "dtype=bf16 head_dim=256 seqused_q=1 seqused_k=1 leftpad_k=1" + kGroups + kLengths,
                 true);
}

TEST(HopperPaths, BackwardOfEveryOption) {
  const std::string narrow = "dtype=bf16 head_dim=64 num_heads_q=2 seqlen_q=300 seqlen_k=400 ";
  check_backward("hopper_bwd", narrow + "mask=causal alignment=top_left");
  check_backward("hopper_bwd", narrow + "window_left=50 window_right=20");
  check_backward("hopper_bwd", "dtype=f16 head_dim=128 window_left=4 num_heads_q=4 num_heads_k=1 seqlen_q=200");
  check_backward("hopper_bwd", narrow + "softmax_scale=-0.3 sink=1 dlse=1");
  check_backward("hopper_bwd", narrow + "mask=causal sink=query dsink=1 dlse=1");
  for (const char* without : {"dq=0", "dk=0 dv=0"}) check_backward("hopper_bwd", narrow + without);
}

TEST(HopperPaths, BackwardOfAlibi) {
  const std::string lengths = " alibi_slopes=[b,h] batch_size=2 seqlen_q=200 seqlen_k=330";
  check_backward("hopper_bwd", "dtype=bf16 head_dim=64 mask=causal" + kGroups + lengths);
  check_backward("hopper_bwd", "dtype=f16 head_dim=128 alignment=top_left window_left=70 num_heads_q=2" + lengths);
  check_backward("hopper_bwd", "dtype=bf16 head_dim=96 dropout_p=0.25 deterministic=1" + kGroups + lengths);
  check_backward("hopper_bwd", "dtype=bf16 head_dim=64 seqused_q=1 seqused_k=1 leftpad_k=1" + kGroups + lengths);
  check_backward("hopper_bwd", "dtype=bf16 head_dim=192 mask=causal" + kGroups + lengths);
}

TEST(HopperPaths, BackwardOfSoftcap) {
  const std::string lengths = " softcap=2 batch_size=2 seqlen_q=200 seqlen_k=330";
  check_backward("128x128 tiles", "dtype=bf16 head_dim=64 mask=causal" + kGroups + lengths);
  check_backward("128x128 tiles", "dtype=f16 head_dim=48 num_heads_q=2" + lengths);
  check_backward("128x64 tiles", "dtype=bf16 head_dim=128 window_left=70 softmax_scale=-0.3 num_heads_q=2" + lengths);
  check_backward("128x64 tiles",
                 "dtype=f16 head_dim=96 alibi_slopes=[h] dropout_p=0.25 deterministic=1" + kGroups + lengths);
  check_backward("64x64 tiles", "dtype=bf16 head_dim=192 head_dim_v=128 mask=causal" + kGroups + lengths);
  check_backward("128x64 tiles", "dtype=bf16 head_dim=128 seqused_q=1 seqused_k=1 leftpad_k=1" + kGroups + lengths,
                 true);
}

TEST(HopperPaths, BackwardOfABias) {
  const std::string lengths = " batch_size=2 seqlen_q=200 seqlen_k=336", boxes = "stages, bias in boxes";
  const std::string two = "128x64 tiles, 2 warpgroups, 2 " + boxes, three = "128x64 tiles, 2 warpgroups, 3 " + boxes;
  check_backward(three, "dtype=bf16 head_dim=64 bias=query[b,h,q,k] dbias=1 mask=causal" + kGroups + lengths);
  check_backward(two, "dtype=f16 head_dim=128 bias=query[1,h,q,k] dbias=1 num_heads_q=2" + lengths);
  check_backward(two, "dtype=bf16 head_dim=64 bias=f32[b,h,1,k] seqused_q=1 seqused_k=1" + kGroups + lengths);
  check_backward(two, "dtype=f16 head_dim=96 bias=query[1,1,1,k] softcap=2 dropout_p=0.25 num_heads_q=2" + lengths);
  check_backward(two, "dtype=f16 head_dim=128 bias=bool[b,1,q,k] window_left=70" + kGroups + lengths);
  check_backward("64x64 tiles, 2 warpgroups, 2 " + boxes,
                 "dtype=bf16 head_dim=256 bias=query[b,h,q,k] mask=causal alibi_slopes=[h]" + kGroups + lengths);
  check_backward("64x64 tiles, 2 warpgroups, 2 " + boxes,
                 "dtype=f16 head_dim=192 bias=bool[b,1,1,k] num_heads_q=2" + lengths);
  check_backward("128x64 tiles, 2 warpgroups, 3 stages",
                 "dtype=bf16 head_dim=128 bias=f32[b,h,q,k] num_heads_q=2" + lengths);
  check_backward("hopper_bwd", "dtype=bf16 head_dim=128 bias=f32[b,1,q,1] dbias=1 window_left=70" + kGroups + lengths);
  check_backward("hopper_bwd", "dtype=f16 head_dim=96 bias=bool[b,1,1,k] dropout_p=0.25 softcap=2" + kGroups + lengths);
  check_backward("hopper_bwd", "dtype=bf16 head_dim=192 bias=query[b,h,q,k] alibi_slopes=[h] deterministic=1 dbias=1" +
                                   kGroups + lengths);
  check_backward("hopper_bwd",
                 "dtype=bf16 head_dim=64 bias=f32[b,h,1,k] seqused_q=1 seqused_k=1 leftpad_k=1" + kGroups + lengths);
  for (const char* type : {"query", "f32", "bool"}) {
    check_backward("hopper_bwd",
                   std::string("dtype=bf16 head_dim=64 num_heads_q=2 bias=") + type + "[b,h,q,k]" + lengths, true);
  }
}

/// Keys that begin in the middle of a group of 32 that share draws, too.
TEST(HopperPaths, BackwardOfDropout) {
  const std::string drops = " dropout_p=0.25 seqlen_q=200 seqlen_k=330";
  check_backward("hopper_bwd", "dtype=bf16 head_dim=64 mask=causal" + kGroups + drops);
  check_backward("hopper_bwd", "dtype=bf16 head_dim=128 seed_tensor=1 num_heads_q=2" + drops);
  check_backward("hopper_bwd", "dtype=f16 head_dim=96 window_left=70 sink=1 dsink=1 num_heads_q=2" + drops);
  check_backward("hopper_bwd",
                 "dtype=f16 head_dim=40 batch_size=2 seqused_q=1 seqused_k=1 leftpad_k=1" + kGroups + drops);
  check_backward("hopper_bwd",
                 "dtype=bf16 head_dim=128 layout=thd batch_size=3 max_seqlen_q=200 max_seqlen_k=300 total_q=400 "
                 "total_k=600 dropout_p=0.1 mask=causal" +
                     kGroups);
}

TEST(HopperPaths, BackwardOfDropoutAndWideHeads) {
  const std::string drops = " dropout_p=0.25 seqlen_q=100 seqlen_k=170";
  check_backward("64x64 tiles, 2 warpgroups, 2 stages", "dtype=bf16 head_dim=256 mask=causal" + kGroups + drops);
  check_backward("64x64 tiles", "dtype=f16 head_dim=192 head_dim_v=128 window_left=70 num_heads_q=2" + drops);
  check_backward("64x64 tiles", "dtype=bf16 head_dim=136 softcap=2 sink=1 dsink=1 num_heads_q=2" + drops);
  check_backward(
      "64x64 tiles",
      "dtype=bf16 head_dim=160 batch_size=2 seqused_q=1 seqused_k=1 leftpad_k=1 deterministic=1" + kGroups + drops);
  check_backward("64x64 tiles", "dtype=f16 head_dim=256 bias=bool[b,1,q,k] alibi_slopes=[h]" + kGroups + drops);
  check_backward("64x64 tiles",
                 "dtype=bf16 head_dim=256 layout=thd batch_size=3 max_seqlen_q=200 max_seqlen_k=300 total_q=400 "
                 "total_k=600 dropout_p=0.1 mask=causal" +
                     kGroups,
                 true);
}

TEST(HopperPaths, BackwardInAFixedOrder) {
  const std::string lengths = " seqlen_q=300 seqlen_k=400 deterministic=1";
  check_backward("hopper_bwd 128x128 tiles", "dtype=bf16 head_dim=64 mask=causal" + kGroups + lengths);
  check_backward("128x64 tiles", "dtype=bf16 head_dim=128 num_heads_q=2" + lengths);
  check_backward("128x64 tiles", "dtype=f16 head_dim=48 head_dim_v=96 window_left=70 num_heads_q=2" + lengths);
  check_backward("64x64 tiles",
                 "dtype=bf16 head_dim=192 head_dim_v=128 mask=causal dropout_p=0 num_heads_q=2" + lengths);
  check_backward(
      "128x128 tiles",
      "dtype=bf16 head_dim=64 batch_size=2 seqused_q=1 seqused_k=1 leftpad_k=1 dropout_p=0.1" + kGroups + lengths);
  check_backward("128x64 tiles",
                 "dtype=f16 head_dim=128 window_left=70 layout=thd batch_size=3 max_seqlen_q=200 max_seqlen_k=300 "
                 "total_q=400 total_k=600 batch_invariant=1" +
                     kGroups);
}

/// Where tiles of keys are fewer than multiprocessors, of which the emulated machine has four.
TEST(HopperPaths, BackwardInPartsOfTheQueries) {
  const std::string few = " num_heads_q=3 num_heads_k=1 seqlen_q=700 seqlen_k=60",
                    two = " num_heads_q=1 seqlen_q=1100 seqlen_k=200";
  check_backward("4 splits", "dtype=bf16 head_dim=128 mask=causal dlse=1" + few);
  check_backward("2 splits", "dtype=bf16 head_dim=128 mask=causal" + two);
  check_backward("2 splits", "dtype=f16 head_dim=64 head_dim_v=40 mask=causal sink=1 dsink=1" + two);
  check_backward("4 splits", "dtype=bf16 head_dim=256 mask=causal alignment=top_left" + few, true);
  check_backward("4 splits", "dtype=bf16 head_dim=192 head_dim_v=128 deterministic=1" + few);
  check_backward("2 splits", "dtype=f16 head_dim=128 window_left=90 window_right=30 deterministic=1" + two);
  check_backward("4 splits", "dtype=bf16 head_dim=64 dropout_p=0.25 deterministic=1" + few);
  check_backward("2 splits", "dtype=bf16 head_dim=96 dropout_p=0.25 seqused_q=1 seqused_k=1 leftpad_k=1" + two);
  check_backward("2 splits",
                 "dtype=bf16 head_dim=128 layout=thd batch_size=2 max_seqlen_q=600 max_seqlen_k=100 total_q=700 "
                 "total_k=150 num_heads_q=2 num_heads_k=1 mask=causal");
  for (const char* without : {" dq=0", " dk=0", " dv=0"})
    check_backward("splits", "dtype=bf16 head_dim=64" + two + without);
  check_backward("2 stages", "dtype=bf16 head_dim=64 batch_invariant=1" + two);
}

TEST(HopperPaths, BackwardOfLengths) {
  const std::string packed = " layout=thd batch_size=3 max_seqlen_q=200 max_seqlen_k=300 total_q=400 total_k=600";
  check_backward("hopper_bwd", "dtype=bf16 head_dim=64 mask=causal" + kGroups + packed);
  check_backward("hopper_bwd", "dtype=f16 head_dim=128 window_left=70" + kGroups + packed);
  check_backward("hopper_bwd", "dtype=bf16 head_dim=128 seqused_q=1 seqused_k=1 leftpad_k=1" + kGroups + kLengths);
  for (const char* lengths : {" seqlen_q=1 seqlen_k=1", " seqlen_q=65 seqlen_k=0", " seqlen_q=0 seqlen_k=130"})
    check_backward("", std::string("dtype=bf16 head_dim=64 num_heads_q=2") + lengths);
}

TEST(HopperPaths, BackwardOfSpecialValues) {
  check_backward("hopper_bwd", "dtype=bf16 head_dim=64 mask=causal num_heads_q=2 seqlen_q=200 seqlen_k=200", true);
  check_backward("hopper_bwd", "dtype=bf16 head_dim=128 seqused_q=1 seqused_k=1 leftpad_k=1" + kGroups + kLengths,
                 true);
}

/// Keys that no query sees: of other seeds than check()'s, since few have such a key with a value that is no number.
TEST(HopperPaths, BackwardOfSpecialValuesThatNobodySees) {
  for (const std::string_view text :
       {"attention_backward dtype=f16 seqlen_q=13 num_heads_q=2 head_dim=32 window_left=2 window_right=3 seqused_k=1",
        "attention_backward dtype=bf16 seqlen_q=13 seqlen_k=60 num_heads_q=2 head_dim=64 window_left=9 window_right=9",
        "attention_backward dtype=bf16 seqlen_q=13 seqlen_k=60 head_dim=192 window_left=9 window_right=9"}) {
    int checked = 0;
    for (std::uint64_t seed = 300000; checked < 12; ++seed) {
      if (!verify::draws_aligned_rows(seed) || !verify::draws_special_values(seed)) continue;
      ++checked;
      const verify::Report report = verify::check_implementation(parse_problem(text), kHopper, seed);
      EXPECT_EQ(report.status, verify::Status::passed) << report.to_string();
    }
  }
}

/// Random problems that failed once, with the seeds of their tensors.
void check_seeds(std::initializer_list<std::pair<const char*, std::uint64_t>> problems) {
  for (const auto& [text, seed] : problems) {
    const verify::Report report = verify::check_implementation(parse_problem(text), kHopper, seed);
    EXPECT_EQ(report.status, verify::Status::passed) << report.to_string();
  }
}

/// A key of infinities weighs nothing where a query's score of it is -inf, and its product with rows behind the last
/// query is no number.
TEST(HopperPaths, BackwardOfInfiniteKeysBehindTheLastQuery) {
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
TEST(HopperPaths, BackwardOfInfinitiesAndABias) {
  check_seeds({{"attention_backward dtype=f16 layout=sbhd batch_size=2 seqlen_q=33 seqlen_k=23 num_heads_q=4 "
                "num_heads_k=2 head_dim=40 alignment=top_left window_left=1 softcap=2 bias=query[b,1,q,k] sink=query "
                "dbias=1",
                310029},
               {"attention_backward dtype=bf16 batch_size=2 seqlen_q=1 seqlen_k=1866 head_dim=64 window_right=1 "
                "softmax_scale=0.17183725082234358 bias=query[b,1,1,k] sink=1 dlse=1 dbias=1 dsink=1",
                310077}});
}

/// Weights of f16 whose products with softcap's slope are subnormal.
TEST(HopperPaths, BackwardOfASteepSoftcap) {
  check_seeds(
      {{"attention_backward dtype=f16 layout=sbhd batch_size=3 seqlen_q=4 seqlen_k=634 head_dim=24 softcap=0.5 "
        "alibi_slopes=[h] seqused_k=1 leftpad_k=1",
        640062}});
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
