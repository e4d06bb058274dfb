// Every path through Hopper's backward pass on the emulated machine: each option, and lengths that no tile divides.
// Each case says what its schedule must name.
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "hopper_paths.hpp"

namespace tilewise::test {
namespace {

void check_backward(std::string_view path, const std::string& text, bool special = false) {
  check(path, text, special, "attention_backward ");
}

TEST(HopperBwdPaths, EveryTile) {
  check_backward("hopper_bwd 128x64 tiles, 2 warpgroups, 3 stages", "dtype=bf16 head_dim=128 num_heads_q=2" + kLengths);
  check_backward("128x64 tiles", "dtype=f16 head_dim=128 mask=causal" + kGroups + kLengths);
  check_backward("128x64 tiles", "dtype=bf16 head_dim=96 mask=causal num_heads_q=2 seqlen_q=260 seqlen_k=130");
  check_backward("128x64 tiles", "dtype=bf16 head_dim=40 head_dim_v=104 mask=causal num_heads_q=2" + kLengths);
  check_backward("hopper_bwd 128x128 tiles, 2 warpgroups, 2 stages", "dtype=bf16 head_dim=64 mask=causal" + kLengths);
  check_backward("128x128 tiles", "dtype=f16 head_dim=24 head_dim_v=64" + kGroups + kLengths);
}

/// Head dims for which two warpgroups share 64 keys.
TEST(HopperBwdPaths, WideHeads) {
  const std::string lengths = " seqlen_q=100 seqlen_k=170";
  check_backward("hopper_bwd 64x64 tiles, 2 warpgroups, 2 stages", "dtype=bf16 head_dim=256 num_heads_q=2" + lengths);
  check_backward("64x64 tiles", "dtype=f16 head_dim=256 mask=causal" + kGroups + lengths);
  check_backward("64x64 tiles, 2 warpgroups, 3 stages",
                 "dtype=bf16 head_dim=192 head_dim_v=136 mask=causal num_heads_q=2 deterministic=1" + lengths);
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

/// Wide heads of whose dk and dv two warpgroups have 64 keys each, and multiply dq besides.
TEST(HopperBwdPaths, WideHeadsThatMultiplyDqTooByNight) {
  const std::string both = "128x64 tiles, 2 warpgroups that multiply dq too, 2 stages, scheduled by a counter",
                    narrow = "num_heads_q=2 head_dim=192 head_dim_v=128 ";
  check_backward(both, "dtype=bf16 " + narrow + kLengths);
  check_backward(both, "dtype=bf16 mask=causal dlse=1 sink=query dsink=1 " + narrow + "seqlen_q=260 seqlen_k=200");
  check_backward(both + ", a query head at a time",
                 "dtype=f16 head_dim=136 head_dim_v=64 mask=causal" + kGroups + kLengths);
  check_backward(both, "dtype=bf16 window_left=60 window_right=10 " + narrow + "seqlen_q=330 seqlen_k=270");
  for (const char* without : {" dq=0", " dk=0 dv=0"}) check_backward(both, "dtype=bf16 " + narrow + kLengths + without);
  check_backward(both, "dtype=f16 mask=causal layout=thd batch_size=4 max_seqlen_q=200 max_seqlen_k=250 " + narrow);
  check_backward(both, "dtype=bf16 seqused_q=1 seqused_k=1 leftpad_k=1 " + narrow + kLengths, true);
  // Most tiles of keys are seen by no query, among them the first one and the last.
  check_backward(both,
                 "dtype=bf16 window_left=20 window_right=0 alignment=top_left " + narrow + "seqlen_q=70 seqlen_k=700");
  check_backward(both, "dtype=bf16 window_left=20 window_right=0" + kGroups +
                           " head_dim=192 head_dim_v=96 seqlen_q=70 seqlen_k=700");
}

/// And whose sums of dq have an order.
TEST(HopperBwdPaths, WideHeadsThatMultiplyDqTooInAFixedOrderByNight) {
  const std::string own = "128x64 tiles, 2 warpgroups that multiply dq too, 2 stages, scheduled by a counter",
                    of_group = own + ", a query head at a time",
                    by_blocks = ", dq in a fixed order, rounded by blocks without tiles",
                    with_last = ", dq in a fixed order, rounded with its last sums",
                    both_ways = ", dq in a fixed order, of the last heads the other way round, rounded with",
                    narrow = "num_heads_q=2 head_dim=192 head_dim_v=128 deterministic=1 ";
  check_backward(own + with_last, "dtype=bf16 " + narrow + kLengths);
  check_backward(own + both_ways, "dtype=bf16 mask=causal dlse=1 " + narrow + "seqlen_q=290 seqlen_k=300");
  check_backward(own + by_blocks,
                 "dtype=bf16 mask=causal batch_invariant=1 " + narrow + "batch_size=1 seqlen_q=600 seqlen_k=600");
  check_backward(own + both_ways, "dtype=bf16 window_left=60 window_right=10 " + narrow + "seqlen_q=330 seqlen_k=330");
  check_backward(of_group + both_ways,
                 "dtype=f16 head_dim=136 head_dim_v=64 mask=causal deterministic=1" + kGroups + kLengths);
  check_backward(own + both_ways,
                 "dtype=f16 mask=causal layout=thd batch_size=4 max_seqlen_q=200 max_seqlen_k=250 " + narrow);
  check_backward(own + with_last, "dtype=bf16 seqused_q=1 seqused_k=1 leftpad_k=1 " + narrow + kLengths, true);
  // Queries that see no key, whose dq the preprocess clears.
  check_backward(own + ", dq in a fixed order", "dtype=bf16 mask=causal " + narrow + "seqlen_q=260 seqlen_k=200");
}

TEST(HopperBwdPaths, EveryOption) {
  const std::string narrow = "dtype=bf16 head_dim=64 num_heads_q=2 seqlen_q=300 seqlen_k=400 ";
  check_backward("hopper_bwd", narrow + "mask=causal alignment=top_left");
  check_backward("hopper_bwd", narrow + "window_left=50 window_right=20");
  check_backward("hopper_bwd", "dtype=f16 head_dim=128 window_left=4 num_heads_q=4 num_heads_k=1 seqlen_q=200");
  check_backward("hopper_bwd", narrow + "softmax_scale=-0.3 sink=1 dlse=1");
  check_backward("hopper_bwd", narrow + "mask=causal sink=query dsink=1 dlse=1");
  for (const char* without : {"dq=0", "dk=0 dv=0"}) check_backward("hopper_bwd", narrow + without);
}

/// Rows of dq that end within 16 leave by lanes, and those that no tile of keys adds to are cleared.
TEST(HopperBwdPaths, LastSumsOfPackedSequences) {
  const std::string last = "rounded with its last sums", packed = " deterministic=1 layout=thd ";
  check_backward(last,
                 "dtype=bf16 head_dim=64 num_heads_q=2 mask=causal batch_size=3 max_seqlen_q=270 max_seqlen_k=270 "
                 "total_q=490 total_k=450" +
                     packed);
  check_backward(last,
                 "dtype=f16 head_dim=72 head_dim_v=128 mask=causal batch_size=4 max_seqlen_q=300 max_seqlen_k=200 "
                 "total_q=500 total_k=350" +
                     kGroups + packed);
  check_backward(last,
                 "dtype=bf16 head_dim=96 window_left=60 window_right=10 num_heads_q=2 batch_size=4 max_seqlen_q=200 "
                 "max_seqlen_k=300 total_q=400 total_k=350" +
                     packed);
  check_backward(last,
                 "dtype=bf16 head_dim=128 mask=causal seqused_q=1 seqused_k=1 leftpad_k=1 batch_invariant=1 "
                 "num_heads_q=2 batch_size=3 seqlen_q=201 seqlen_k=150",
                 true);
}

/// Heads enough for sets in either direction.
TEST(HopperBwdPaths, InAnOrderBothWays) {
  const std::string both_ways = "of the last heads the other way round, rounded with its last sums",
                    heads = "num_heads_q=5 deterministic=1 ";
  check_backward(both_ways, heads + "dtype=bf16 head_dim=128 mask=causal seqlen_q=390");
  check_backward(both_ways, heads + "dtype=f16 head_dim=64 mask=causal window_left=200 seqlen_q=400");
  check_backward(both_ways, heads + "dtype=bf16 head_dim=64 window_left=90 window_right=30 seqlen_q=300 seqlen_k=500");
  check_backward(both_ways, heads + "dtype=bf16 head_dim=96 mask=causal seqlen_q=300 alibi_slopes=[h] softcap=3");
  check_backward(both_ways, heads + "dtype=bf16 head_dim=128 mask=causal seqlen_q=304 bias=query[b,h,q,k]");
  check_backward(both_ways, heads + "dtype=bf16 head_dim=192 head_dim_v=128 mask=causal seqlen_q=300");
  check_backward(both_ways, heads +
                                "dtype=bf16 head_dim=72 mask=causal batch_size=3 layout=thd max_seqlen_q=300 "
                                "max_seqlen_k=300 total_q=500 total_k=500");
  check_backward(both_ways,
                 "dtype=bf16 head_dim=96 num_heads_q=6 num_heads_k=3 mask=causal seqlen_q=560 deterministic=1");
}

/// A tile of keys for one query head of a group after the other, all of them or a share.
TEST(HopperBwdPaths, QueryHeadsOfAGroup) {
  const std::string heads = "num_heads_q=4 num_heads_k=1 ",
                    one_by_one = "scheduled by a counter, a query head at a time";
  check_backward(one_by_one, heads + "dtype=bf16 head_dim=64 mask=causal batch_size=2 seqlen_q=200 seqlen_k=330");
  check_backward(one_by_one,
                 heads + "dtype=bf16 head_dim=64 deterministic=1 seqlen_q=150 seqlen_k=260 alibi_slopes=[h]");
  check_backward(one_by_one, heads + "dtype=f16 head_dim=96 mask=causal seqlen_q=130 seqlen_k=520 deterministic=1");
  check_backward(one_by_one,
                 heads + "dtype=bf16 head_dim=72 mask=causal seqlen_q=100 seqlen_k=520 batch_invariant=1 dk=0");
  check_backward(one_by_one,
                 "dtype=bf16 head_dim=80 mask=causal seqlen_q=520 num_heads_q=3 num_heads_k=1 dv=0 "
                 "deterministic=1");
  check_backward(one_by_one, heads + "dtype=bf16 head_dim=96 window_left=60 mask=causal seqlen_q=300 softcap=2");
  check_backward(one_by_one,
                 heads + "dtype=bf16 head_dim=136 mask=causal alignment=top_left seqlen_q=100 seqlen_k=250");
  check_backward(one_by_one,
                 "num_heads_q=4 num_heads_k=2 dtype=bf16 head_dim=64 bias=query[b,h,q,k] batch_size=3 seqlen_q=100 "
                 "seqlen_k=260");
  check_backward(one_by_one,
                 heads +
                     "dtype=bf16 head_dim=64 layout=thd max_seqlen_q=130 max_seqlen_k=530 batch_size=3 total_q=200 "
                     "total_k=700 mask=causal deterministic=1");
  check_backward(one_by_one,
                 heads +
                     "dtype=bf16 head_dim=64 seqused_q=1 seqused_k=1 leftpad_k=1 deterministic=1 "
                     "batch_size=2 seqlen_q=100 seqlen_k=300",
                 true);
}

/// Their numbers follow each other faster than anything else makes warps wait for one another.
TEST(HopperBwdPaths, TilesOfKeysThatNoQuerySees) {
  check_backward("hopper_bwd",
                 "dtype=bf16 batch_size=3 seqlen_q=1 seqlen_k=1297 head_dim=128 head_dim_v=64 alignment=top_left "
                 "window_right=35 seqused_k=1");
}

TEST(HopperBwdPaths, Alibi) {
  const std::string lengths = " alibi_slopes=[b,h] batch_size=2 seqlen_q=200 seqlen_k=330";
  check_backward("hopper_bwd", "dtype=bf16 head_dim=64 mask=causal" + kGroups + lengths);
  check_backward("hopper_bwd", "dtype=f16 head_dim=128 alignment=top_left window_left=70 num_heads_q=2" + lengths);
  check_backward("hopper_bwd", "dtype=bf16 head_dim=96 dropout_p=0.25 deterministic=1" + kGroups + lengths);
  check_backward("hopper_bwd", "dtype=bf16 head_dim=64 seqused_q=1 seqused_k=1 leftpad_k=1" + kGroups + lengths);
  check_backward("hopper_bwd", "dtype=bf16 head_dim=192 mask=causal" + kGroups + lengths);
}

TEST(HopperBwdPaths, Softcap) {
  const std::string lengths = " softcap=2 batch_size=2 seqlen_q=200 seqlen_k=330";
  check_backward("128x128 tiles", "dtype=bf16 head_dim=64 mask=causal" + kGroups + lengths);
  check_backward("128x128 tiles", "dtype=f16 head_dim=48 num_heads_q=2" + lengths);
  check_backward("128x64 tiles", "dtype=bf16 head_dim=128 window_left=70 softmax_scale=-0.3 num_heads_q=2" + lengths);
  check_backward("128x64 tiles", "dtype=bf16 head_dim=128 num_heads_q=2" + lengths);
  check_backward("128x64 tiles", "dtype=bf16 head_dim=96 head_dim_v=72 mask=causal" + kGroups + lengths);
  check_backward("128x64 tiles",
                 "dtype=f16 head_dim=96 alibi_slopes=[h] dropout_p=0.25 deterministic=1" + kGroups + lengths);
  check_backward("64x64 tiles", "dtype=bf16 head_dim=192 head_dim_v=128 mask=causal" + kGroups + lengths);
  check_backward("128x64 tiles", "dtype=bf16 head_dim=128 seqused_q=1 seqused_k=1 leftpad_k=1" + kGroups + lengths,
                 true);
}

TEST(HopperBwdPaths, ABias) {
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

/// Blocks that work on one tile of keys after the other, whose tiles of queries are odd numbers.
TEST(HopperBwdPaths, OptionsOfPersistentBlocksByNight) {
  const std::string_view scheduled = "scheduled by a counter", in_order = "scheduled by a counter, dq in a fixed order";
  const std::string heads = " num_heads_q=2 ", lengths = heads + "seqlen_q=650 seqlen_k=700 ";
  check_backward(scheduled, "dtype=bf16 head_dim=64 dropout_p=0.25 mask=causal" + lengths);
  check_backward(scheduled, "dtype=f16 head_dim=96 dropout_p=0.25" + lengths);
  check_backward(scheduled,
                 "dtype=f16 head_dim=40 dropout_p=0.25 mask=causal layout=thd batch_size=3 max_seqlen_q=400 "
                 "max_seqlen_k=400 total_q=500 total_k=700" +
                     heads);
  check_backward(scheduled, "dtype=bf16 head_dim=128 bias=query[b,h,q,k]" + lengths);
  check_backward(scheduled, "dtype=f16 head_dim=64 bias=bool[b,1,1,k] mask=causal seqused_k=1" + lengths);
  check_backward(in_order, "dtype=bf16 head_dim=64 bias=f32[1,h,q,k] mask=causal deterministic=1" + lengths);
  check_backward(in_order, "dtype=f16 head_dim=128 bias=query[b,1,q,k] deterministic=1" + lengths);
  check_backward(scheduled, "dtype=f16 head_dim=64 mask=causal" + lengths);
  check_backward(in_order, "dtype=f16 head_dim=64 window_left=200 window_right=0 deterministic=1" + lengths);
  check_backward(scheduled, "dtype=bf16 head_dim=256 softcap=2 mask=causal seqlen_q=300 seqlen_k=330" + heads);
  check_backward(scheduled, "dtype=bf16 head_dim=192 bias=query[b,h,q,k] seqlen_q=300 seqlen_k=330" + heads);
}

/// Keys that begin in the middle of a group of 32 that share draws, too.
TEST(HopperBwdPaths, Dropout) {
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

TEST(HopperBwdPaths, DropoutAndWideHeadsByNight) {
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

TEST(HopperBwdPaths, InAFixedOrderByNight) {
  const std::string lengths = " seqlen_q=300 seqlen_k=400 deterministic=1";
  check_backward("hopper_bwd 128x128 tiles", "dtype=bf16 head_dim=64 mask=causal" + kGroups + lengths);
  check_backward("128x64 tiles", "dtype=bf16 head_dim=128 num_heads_q=2" + lengths);
  check_backward("128x64 tiles", "dtype=f16 head_dim=48 head_dim_v=96 window_left=70 num_heads_q=2" + lengths);
  check_backward("128x64 tiles", "dtype=bf16 head_dim=32 bias=query[b,1,q,k]" + kGroups + lengths);
  check_backward("64x64 tiles", "dtype=bf16 head_dim=192 head_dim_v=192 mask=causal num_heads_q=2" + lengths);
  check_backward(
      "128x128 tiles",
      "dtype=bf16 head_dim=64 batch_size=2 seqused_q=1 seqused_k=1 leftpad_k=1 dropout_p=0.1" + kGroups + lengths);
  check_backward("128x64 tiles",
                 "dtype=f16 head_dim=128 window_left=70 layout=thd batch_size=3 max_seqlen_q=200 max_seqlen_k=300 "
                 "total_q=400 total_k=600 batch_invariant=1" +
                     kGroups);
}

/// Where tiles of keys are fewer than multiprocessors, of which the emulated machine has four.
TEST(HopperBwdPaths, InPartsOfTheQueries) {
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

/// Of more heads than the emulated machine's four multiprocessors work on at first.
TEST(HopperBwdPaths, PreprocessOfLaterHeads) {
  const std::string late = "preprocess of later heads meanwhile";
  check_backward(late, "dtype=bf16 head_dim=64 batch_size=2 num_heads_q=3 seqlen_q=170 seqlen_k=170 dlse=1");
  check_backward(late, "dtype=f16 head_dim=64 mask=causal" + kGroups + " batch_size=3 seqlen_q=300 seqlen_k=330");
  check_backward(late,
                 "dtype=bf16 head_dim=128 num_heads_q=6 seqlen_q=100 seqlen_k=250 deterministic=1 sink=1 dsink=1");
  check_backward(late, "dtype=f16 head_dim=96 num_heads_q=6 seqlen_q=130 seqlen_k=260 dropout_p=0.25");
  check_backward(late, "dtype=bf16 head_dim=256 batch_size=2 num_heads_q=3 seqlen_q=100 seqlen_k=170");
  check_backward(late, "dtype=bf16 head_dim=192 head_dim_v=128 num_heads_q=12 mask=causal seqlen_q=70 seqlen_k=220");
  check_backward(late,
                 "dtype=bf16 head_dim=64 layout=thd batch_size=4 num_heads_q=3 max_seqlen_q=90 max_seqlen_k=400 "
                 "total_q=250 total_k=1500");
  // Some heads' queries see no key, and nobody waits for their preprocess.
  check_backward(late,
                 "dtype=bf16 head_dim=64 layout=thd batch_size=6 num_heads_q=2 max_seqlen_q=90 max_seqlen_k=900 "
                 "total_q=400 total_k=2400 sink=1",
                 true);
}

TEST(HopperBwdPaths, Lengths) {
  const std::string packed = " layout=thd batch_size=3 max_seqlen_q=200 max_seqlen_k=300 total_q=400 total_k=600";
  check_backward("hopper_bwd", "dtype=bf16 head_dim=64 mask=causal" + kGroups + packed);
  check_backward("hopper_bwd", "dtype=f16 head_dim=128 window_left=70" + kGroups + packed);
  check_backward("hopper_bwd", "dtype=bf16 head_dim=128 seqused_q=1 seqused_k=1 leftpad_k=1" + kGroups + kLengths);
  for (const char* lengths : {" seqlen_q=1 seqlen_k=1", " seqlen_q=65 seqlen_k=0", " seqlen_q=0 seqlen_k=130"})
    check_backward("", std::string("dtype=bf16 head_dim=64 num_heads_q=2") + lengths);
}

TEST(HopperBwdPaths, SpecialValues) {
  check_backward("hopper_bwd", "dtype=bf16 head_dim=64 mask=causal num_heads_q=2 seqlen_q=200 seqlen_k=200", true);
  check_backward("hopper_bwd", "dtype=bf16 head_dim=128 seqused_q=1 seqused_k=1 leftpad_k=1" + kGroups + kLengths,
                 true);
}

}  // namespace
}  // namespace tilewise::test
