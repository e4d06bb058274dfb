// What becomes of forward problems: grids, tensor maps, tiles that fit, and reasons for what is refused.
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "backends/cuda/hopper/implementation.hpp"
#include "support.hpp"
#include "tilewise/attention.hpp"

namespace tilewise::backends::hopper {
namespace {

using core::concat;

TEST(HopperLowering, FillsTheDeviceAndSchedulesFromACounter) {
  const gpu::Lowering lowering = lowered(kCausal);
  ASSERT_EQ(lowering.steps.size(), 1U);
  EXPECT_EQ(lowering.part("tile_counter")->bytes, 16U);
  const auto& launch = std::get<gpu::Launch>(lowering.steps[0]);
  EXPECT_EQ(launch.grid, gpu::Extent3{132});
  EXPECT_EQ(launch.threads(), 512U);
  const device::TileOrder order = params_of(launch).order;
  EXPECT_EQ(order.num_tiles, 22);
  EXPECT_EQ(order.heads_at_once, 8);  // sets of one size
  EXPECT_EQ(order.short_tiles, 11);
}

TEST(HopperLowering, SchedulesEqualTilesBeforehand) {
  const gpu::Lowering lowering = lowered("dtype=bf16 seqlen_q=300 num_heads_q=3 head_dim=128 batch_invariant=1");
  ASSERT_EQ(lowering.steps.size(), 1U);
  EXPECT_EQ(lowering.workspace_bytes, 0U);
  EXPECT_EQ(std::get<gpu::Launch>(lowering.steps[0]).grid, gpu::Extent3{6});
}

/// Where all queries see the same keys, and enough of them, without many rows beside them to make a pair of tiles.
TEST(HopperLowering, BlocksShareKeysTwoByTwo) {
  const auto launch_of = [](const std::string& rest) {
    return std::get<gpu::Launch>(lowered("dtype=bf16 batch_size=4 num_heads_q=16 " + rest).steps[0]);
  };
  const gpu::Launch pairs = launch_of("seqlen_q=4096 head_dim=256");
  EXPECT_EQ(pairs.cluster, gpu::Extent3{2});
  EXPECT_EQ(pairs.grid, gpu::Extent3{132});
  EXPECT_EQ(params_of(pairs).order.num_tiles, 16);
  EXPECT_EQ(pairs.tensor_maps.at(1).map.box[1], 32U);
  for (const std::string_view dim : {"72", "88", "136", "200"}) {
    EXPECT_EQ(launch_of(concat("seqlen_q=4096 head_dim=", dim)).cluster, gpu::Extent3{2}) << dim;
  }
  for (const std::string_view alone :
       {"seqlen_q=512 head_dim=256", "seqlen_q=4096 head_dim=256 mask=causal", "seqlen_q=4096 head_dim=256 softcap=9",
        "seqlen_q=4096 head_dim=256 seqused_k=1", "seqlen_q=4096 head_dim=128", "seqlen_q=4096 head_dim=80",
        "seqlen_q=2048 head_dim=72", "seqlen_q=1100 seqlen_k=4096 head_dim=256"}) {
    EXPECT_EQ(launch_of(std::string(alone)).cluster, gpu::Extent3{}) << alone;
  }
}

TEST(HopperLowering, SchedulesKeysInPartsWhereTilesAreFew) {
  const gpu::Lowering lowering =
      lowered("dtype=bf16 seqlen_q=64 seqlen_k=8192 num_heads_q=32 num_heads_k=8 head_dim=128 mask=causal");
  ASSERT_EQ(lowering.steps.size(), 2U);
  const auto& parts = std::get<gpu::Launch>(lowering.steps[0]);
  const auto& merge = std::get<gpu::Launch>(lowering.steps[1]);
  const device::TileOrder order = params_of(parts).order;
  EXPECT_EQ(order.num_tiles, 2);  // of 128 rows: 32 queries of 4 heads
  EXPECT_EQ(order.num_splits, 8);
  EXPECT_EQ(parts.grid, gpu::Extent3{8 * 2 * 8});  // each block has one, and nobody counts
  EXPECT_EQ(order.counters, 0);
  EXPECT_EQ(merge.key.body->name, "combine");
  EXPECT_TRUE(merge.programmatic);
  const std::size_t rows = 8U * 32U * 64U;
  EXPECT_EQ(lowering.part("out_accum")->bytes, rows * 128U * sizeof(float));
  EXPECT_EQ(lowering.part("lse_accum")->bytes, 2 * rows * sizeof(float));
}

/// What mask_mod leaves of tiles is found and listed before, of each head where it differs; beside left padding it is
/// asked in every tile.
TEST(HopperLowering, ListsTilesThatFunctionsLeave) {
  const std::string few = "dtype=bf16 seqlen_q=4096 num_heads_q=16 head_dim=128 ";
  const gpu::Lowering all = lowered(few + "mask_mod=kv_idx<=q_idx"),
                      each = lowered(few + "mask_mod=kv_idx>=h score_mod=score*2");
  EXPECT_EQ(names_of(all), "hopper_mask_tiles hopper_tile_lists hopper_forward ");
  EXPECT_EQ(names_of(each), names_of(all));
  EXPECT_EQ(each.part("query_tile_classes")->bytes, 16 * all.part("query_tile_classes")->bytes);
  EXPECT_EQ(names_of(lowered(few + "mask_mod=kv_idx>=h leftpad_k=1")), "hopper_forward ");
  EXPECT_EQ(names_of(lowered_backward(few + "mask_mod=kv_idx<=q_idx")),
            "hopper_mask_tiles hopper_tile_lists hopper_bwd_preprocess hopper_bwd hopper_bwd_convert_dq ");
}

/// Lists of each head would take too much memory, or its number does not fit beside the batch's.
TEST(HopperLowering, ListsTilesOfEachHeadWhereTheyAreFew) {
  const auto names = [](std::string_view sizes) {
    return names_of(lowered(concat("dtype=bf16 head_dim=128 mask_mod=kv_idx>=h ", sizes)));
  };
  EXPECT_EQ(names("seqlen_q=65536 num_heads_q=32"), "hopper_mask_tiles hopper_tile_lists hopper_forward ");
  EXPECT_EQ(names("seqlen_q=65536 num_heads_q=33"), "hopper_forward ");
  EXPECT_EQ(names("seqlen_q=128 batch_size=65537 num_heads_q=1"), "hopper_forward ");
}

TEST(HopperLowering, RefusesFunctionsThatWouldBeCalled) {
  std::string terms = "score";
  for (int i = 1; i < 70; ++i) terms += concat("+exp(score*", i, ".5)");
  const std::string shape = "attention_forward dtype=bf16 seqlen_q=512 num_heads_q=4 head_dim=64 score_mod=";
  const Problem called = parse_problem(shape + terms);
  EXPECT_NE(lower(called, h200()).refusal.find("score_mod: it must have <= 64 terms (got "), std::string::npos);
  const Problem wide =
      parse_problem("attention_backward dtype=bf16 seqlen_q=512 num_heads_q=4 head_dim=256 mask_mod=kv_idx<=q_idx");
  EXPECT_NE(lower(wide, h200()).refusal.find("mask_mod: head_dim and head_dim_v must be <= 128"), std::string::npos);
}

/// No sequences have no mean length.
TEST(HopperLowering, TakesNoSequencesAtAll) {
  const std::string none = "dtype=bf16 layout=thd batch_size=0 max_seqlen_q=0 max_seqlen_k=0 total_q=0 total_k=0 ";
  for (const char* heads : {"head_dim=64", "num_heads_q=4 num_heads_k=1 head_dim=128"}) {
    for (const gpu::Lowering& lowering : {lowered(none + heads), lowered_backward(none + heads)}) {
      for (const auto& step : lowering.steps) EXPECT_FALSE(std::holds_alternative<gpu::Launch>(step)) << heads;
    }
  }
}

/// Rows that belong to no sequence are cleared by a launch of their own, and only where that is asked for.
TEST(HopperLowering, ClearsTheRest) {
  const std::string packed = "dtype=bf16 layout=thd batch_size=3 max_seqlen_q=70 total_q=160 head_dim=64";
  EXPECT_EQ(tuning_text(problem_of(packed + " clear_rest=1")), tuning_text(problem_of(packed)));
  for (const bool clears : {false, true}) {
    const std::string text = packed + (clears ? " clear_rest=1" : "");
    for (const gpu::Lowering& lowering : {lowered(text), lowered_backward(text)}) {
      const gpu::Launch& last = *lowering.launches().back();
      EXPECT_EQ(last.key.body->name == "clear_rest", clears) << text;
      if (clears) {
        EXPECT_EQ(last.grid, gpu::Extent3{132});
      }
    }
  }
}

/// 96 tiles of 192 rows would leave 36 multiprocessors idle, 128 of 128 rows leave 4.
TEST(HopperLowering, FillsTheDeviceWithNarrowerTiles) {
  const gpu::Lowering lowering =
      lowered("dtype=bf16 seqlen_q=512 seqlen_k=8192 num_heads_q=32 num_heads_k=8 head_dim=128 mask=causal");
  ASSERT_EQ(lowering.steps.size(), 1U);
  EXPECT_EQ(std::get<gpu::Launch>(lowering.steps[0]).grid, gpu::Extent3{128});
}

/// 176 tiles of 192 rows beside a window are two rounds on 132 multiprocessors, as 256 of 128 rows are.
TEST(HopperLowering, CountsWholeRoundsBesideAWindow) {
  const Problem problem =
      problem_of("dtype=bf16 seqlen_q=2048 num_heads_q=16 head_dim=128 mask=causal window_left=512");
  EXPECT_EQ(forward_schedule(problem, h200()).config.block_m(), 128);
}

/// Where masks leave consumer warpgroups unequal numbers of tiles, unless there are many or scores have options, and
/// in fp8 to head_dim 128.
TEST(HopperLowering, TakesNoTurnsWhereWarpgroupsSeeUnequalKeys) {
  const auto uses_ping_pong = [](std::string_view text) {
    const std::string_view dtype = text.starts_with("dtype=") ? "" : "dtype=bf16 ";
    const Problem problem = problem_of(concat(dtype, "batch_size=8 num_heads_q=16 ", text));
    return forward_schedule(problem, h200()).config.ping_pong != 0;
  };
  EXPECT_FALSE(uses_ping_pong("seqlen_q=512 head_dim=128 mask=causal"));
  EXPECT_TRUE(uses_ping_pong("seqlen_q=512 head_dim=128"));
  EXPECT_TRUE(uses_ping_pong("seqlen_q=4096 head_dim=128 mask=causal"));
  EXPECT_TRUE(uses_ping_pong("seqlen_q=512 seqlen_k=4096 head_dim=128 mask=causal"));
  EXPECT_TRUE(uses_ping_pong("seqlen_q=512 head_dim=256 mask=causal"));
  EXPECT_FALSE(uses_ping_pong("seqlen_q=4096 head_dim=128 mask=causal softcap=30"));
  EXPECT_TRUE(uses_ping_pong("seqlen_q=4096 head_dim=128 softcap=30"));
  EXPECT_FALSE(uses_ping_pong("seqlen_q=4096 head_dim=64 mask=causal softcap=30"));
  EXPECT_TRUE(uses_ping_pong("seqlen_q=4096 head_dim=64 softcap=30"));
  EXPECT_TRUE(uses_ping_pong("seqlen_q=4096 head_dim=128 mask=causal softcap=30 alibi_slopes=[h]"));
  EXPECT_FALSE(uses_ping_pong("seqlen_q=4096 head_dim=256 mask=causal window_left=1024"));
  EXPECT_FALSE(uses_ping_pong("seqlen_q=4096 head_dim=128 mask=causal window_left=1024 alibi_slopes=[h]"));
  EXPECT_FALSE(uses_ping_pong("seqlen_q=4096 head_dim=64 mask=causal window_left=1024 softcap=30"));
  EXPECT_TRUE(uses_ping_pong("seqlen_q=4096 head_dim=256 mask=causal window_left=1024 softcap=30"));
  EXPECT_TRUE(uses_ping_pong("seqlen_q=4096 head_dim=128 mask=causal window_left=1024 bias=query[b,h,q,k]"));
  EXPECT_TRUE(uses_ping_pong("seqlen_q=512 head_dim=128 mask=causal dropout_p=0.1"));
  EXPECT_FALSE(uses_ping_pong("dtype=fp8_e4m3 seqlen_q=4096 head_dim=128"));
  EXPECT_TRUE(uses_ping_pong("dtype=fp8_e4m3 seqlen_q=4096 head_dim=256"));
  EXPECT_TRUE(uses_ping_pong("dtype=fp8_e4m3 seqlen_q=4096 head_dim=128 softcap=30"));
}

/// Tiles that fit few queries and keys, and a bias's of narrow heads.
TEST(HopperLowering, TilesFitShortSequences) {
  const auto tile = [](std::string_view text) {
    const Problem problem = problem_of(concat("dtype=bf16 batch_size=64 num_heads_q=16 ", text));
    return name_of(forward_schedule(problem, h200()));
  };
  for (const char* length : {"257", "384", "576"}) {
    EXPECT_TRUE(tile(concat("head_dim=64 seqlen_q=", length)).starts_with("192x96/")) << length;
  }
  for (const char* length : {"160", "197", "320", "512", "577", "1024", "384 mask=causal"}) {
    EXPECT_TRUE(tile(concat("head_dim=64 seqlen_q=", length)).starts_with("256x64/")) << length;
  }
  EXPECT_FALSE(tile("head_dim=64 seqlen_q=384 seqused_k=1 mask=causal").starts_with("256x64/"));
  for (const char* dims : {"72", "96", "128"}) {
    EXPECT_TRUE(tile(concat("seqlen_q=256 head_dim=", dims)).starts_with("128x128/")) << dims;
    EXPECT_TRUE(tile(concat("seqlen_q=512 head_dim=", dims)).starts_with("192x")) << dims;
    EXPECT_TRUE(tile(concat("seqlen_q=256 mask=causal head_dim=", dims)).starts_with("192x")) << dims;
  }
  for (const char* few : {"128", "77", "100 mask=causal", "128 alibi_slopes=[h]", "128 seqlen_k=500"}) {
    EXPECT_TRUE(tile(concat("head_dim=64 seqlen_q=", few)).starts_with("128x64/3")) << few;
  }
  for (const char* other : {"100 seqused_k=1", "100 window_left=9", "100 softcap=20", "129"}) {
    EXPECT_FALSE(tile(concat("head_dim=64 seqlen_q=", other)).starts_with("128x64/3")) << other;
  }
  for (const char* length : {"128", "320", "384"}) {
    EXPECT_TRUE(tile(concat("head_dim=64 bias=query[1,h,q,k] seqlen_q=", length)).starts_with("192x64/4")) << length;
  }
  EXPECT_TRUE(tile("head_dim=32 bias=query[1,h,q,k] seqlen_q=448").starts_with("256x48/"));
  const std::string narrow = "head_dim=64 seqlen_q=1024 ";
  for (const char* bias : {"bias=query[b,h,q,k]", "bias=bool[b,1,1,k]", "bias=query[1,h,q,k] mask=causal"}) {
    EXPECT_TRUE(tile(narrow + bias).starts_with("256x48/")) << bias;
  }
  for (const char* bias :
       {"bias=f32[b,h,q,k]", "bias=query[b,h,q,k] window_left=100", "bias=bool[b,1,1,k] seqused_k=1"}) {
    EXPECT_TRUE(tile(narrow + bias).starts_with("192x64/")) << bias;
  }
}

/// What `tilewise tune` chooses from: schedules that fit the device, each with a name of its own.
TEST(HopperLowering, HasOtherSchedules) {
  for (const std::string_view text :
       {kCausal, std::string_view("dtype=bf16 batch_size=4 seqlen_q=512 num_heads_q=8 head_dim=64"),
        std::string_view("dtype=f16 seqlen_q=64 seqlen_k=8192 num_heads_q=32 num_heads_k=8 head_dim=128 mask=causal"),
        std::string_view("dtype=bf16 seqlen_q=300 num_heads_q=4 head_dim=72 softcap=20"),
        std::string_view("dtype=fp8_e4m3 seqlen_q=900 num_heads_q=4 head_dim=128")}) {
    const Problem problem = problem_of(text);
    const std::vector<ForwardSchedule> candidates = forward_candidates(problem, h200());
    SCOPED_TRACE(text);
    expect_candidates<Forward>(candidates, forward_schedule(problem, h200()),
                               [&](const std::string& name) { return tuned_schedule(problem, h200(), name); });
  }
  EXPECT_EQ(forward_candidates(problem_of(concat(kCausal, " batch_invariant=1")), h200()).size(), 1U);
}

TEST(HopperLowering, TakesTheScheduleThatWasTuned) {
  const Problem problem = problem_of(kCausal);
  core::DeviceDescription device = h200();
  const std::string name = name_of(forward_candidates(problem, device).back());
  const auto schedule_with = [&](const std::string& implementation, const std::string& chosen) {
    device.tuned = std::make_shared<const core::TunedSchedules>(
        core::TunedSchedules{{core::tuning_key(implementation, to_string(problem)), chosen}});
    return lower(problem, device).lowering.schedule;
  };
  const std::string untuned = lower(problem, h200()).lowering.schedule;
  EXPECT_NE(schedule_with("cuda.hopper", name), untuned);
  Problem without_lse = problem;
  without_lse.softmax_lse = false;
  EXPECT_EQ(lower(without_lse, device).lowering.schedule, lower(problem, device).lowering.schedule);
  EXPECT_EQ(schedule_with("cuda.hopper", "1x1/1/1"), untuned);
  EXPECT_EQ(schedule_with("cuda.sm80", name), untuned);
}

/// A row's bits then depend on nothing but its own sequence.
TEST(HopperLowering, KeepsToTheTableForBatchInvariance) {
  for (const int batch : {1, 8, 64}) {
    const gpu::Lowering lowering =
        lowered(concat("dtype=bf16 seqlen_q=64 seqlen_k=8192 num_heads_q=32 num_heads_k=8 "
                       "head_dim=128 batch_invariant=1 batch_size=",
                       batch));
    const auto config = gpu::config_of<Forward>(lowering.launches().at(0)->key);
    EXPECT_EQ(lowering.launches().size(), 1U);
    EXPECT_EQ(config.block_m(), 192);
    EXPECT_EQ(config.block_n, 64);
  }
}

TEST(HopperLowering, LaunchesNothingForNoQueries) {
  EXPECT_TRUE(lowered("dtype=bf16 seqlen_q=0 seqlen_k=64 head_dim=64").launches().empty());
}

TEST(HopperLowering, PacksHeadsOfFewQueries) {
  const gpu::Lowering lowering =
      lowered("dtype=bf16 batch_size=4 seqlen_q=5 seqlen_k=500 num_heads_q=12 num_heads_k=2 head_dim=128");
  const gpu::Launch& launch = *lowering.launches().at(0);
  const device::TileOrder order = params_of(launch).order;
  EXPECT_EQ(order.queries_per_warpgroup, 10);  // of 6 heads each
  EXPECT_EQ(order.num_heads, 2);
  EXPECT_EQ(order.num_tiles, 1);
  EXPECT_EQ(launch.tensor_maps.at(0).map.box, (std::array<std::uint32_t, 5>{64, 6, 10, 1, 1}));
}

/// Of a call on tensors of [2, 40, heads, 72], stored as [2, heads, 40, 72].
device::AttentionParams transposed_call(std::byte* memory) {
  device::AttentionParams call{};
  call.batch_size = 2, call.seqlen_q = call.seqlen_k = 40;
  call.num_heads_q = 4, call.num_heads_k = 2, call.head_dim = call.head_dim_v = 72;
  call.q = call.out = {memory, 4 * 40 * 72, 72, 40 * 72};
  call.k = call.v = {memory, 2 * 40 * 72, 72, 40 * 72};
  return call;
}

TEST(HopperLowering, MapsTensorsByTheirStrides) {
  alignas(16) std::byte memory[16];
  const device::AttentionParams call = transposed_call(memory);
  const gpu::Lowering lowering =
      lowered("dtype=f16 batch_size=2 seqlen_q=40 num_heads_q=4 num_heads_k=2 head_dim=72 layout=bhsd");
  const gpu::Launch& launch = *lowering.launches().at(0);
  const std::vector<std::size_t> places{
      offsetof(device::HopperForwardParams, q_map), offsetof(device::HopperForwardParams, k_map),
      offsetof(device::HopperForwardParams, v_map), offsetof(device::HopperForwardParams, out_map)};
  ASSERT_EQ(launch.tensor_maps.size(), 2 * places.size());  // and of their first columns
  for (std::size_t i = 0; i < places.size(); ++i) {
    EXPECT_EQ(launch.tensor_maps[i].param_offset, places[i]);
    EXPECT_EQ(launch.tensor_maps[i].param_offset % 64, 0U);
    gpu::TensorMap map = launch.tensor_maps[i].map;
    launch.tensor_maps[i].bind(&call, map);
    EXPECT_EQ(map.address, memory);
    EXPECT_EQ(map.dtype, DType::f16);
    EXPECT_EQ(map.dims[0], 72U);
    EXPECT_EQ(map.box[0], 64U);
  }
  gpu::TensorMap q = launch.tensor_maps[0].map, k = launch.tensor_maps[1].map;
  launch.tensor_maps[0].bind(&call, q);
  launch.tensor_maps[1].bind(&call, k);
  // Two heads share a key head: [dim, head of the group, seq, group, batch].
  EXPECT_EQ(q.dims, (std::array<std::uint64_t, 5>{72, 2, 40, 2, 2}));
  EXPECT_EQ(q.strides, (std::array<std::uint64_t, 4>{40 * 144, 144, 80 * 144, 160 * 144}));
  EXPECT_EQ(k.dims, (std::array<std::uint64_t, 5>{72, 40, 2, 2, 0}));
  EXPECT_EQ(k.strides, (std::array<std::uint64_t, 4>{144, 40 * 144, 80 * 144, 0}));
}

TEST(HopperLowering, BoxesOfBytesHaveTwiceTheColumns) {
  const gpu::Lowering lowering = lowered("dtype=fp8_e4m3 seqlen_q=40 num_heads_q=4 head_dim=128 out_dtype=f16");
  const std::vector<gpu::TensorMapParameter>& maps = lowering.launches().at(0)->tensor_maps;
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}, std::size_t{2}}) {
    EXPECT_EQ(maps.at(i).map.dtype, DType::fp8_e4m3);
    EXPECT_EQ(maps.at(i).map.box[0], 128U);
  }
  EXPECT_EQ(maps.at(3).map.dtype, DType::f16);
  EXPECT_EQ(maps.at(3).map.box[0], 64U);
}

/// A bias of [2, 1, 40, 48] in fp32: a head that it has not is one row of its boxes, whose stride is 0.
TEST(HopperLowering, MapsABiasByItsStrides) {
  alignas(16) std::byte memory[16];
  const std::string text = "dtype=bf16 batch_size=2 seqlen_q=40 seqlen_k=48 num_heads_q=4 num_heads_k=2 head_dim=64 ";
  device::AttentionParams call = transposed_call(memory);
  call.seqlen_k = 48;
  call.bias = {memory, 40 * 48, 0, 48, 1};
  const std::vector<gpu::TensorMapParameter> maps =
      lowered(concat(text, "bias=f32[b,1,q,k]")).launches().at(0)->tensor_maps;
  ASSERT_EQ(maps.size(), 5U);
  EXPECT_EQ(maps[4].param_offset, offsetof(device::HopperForwardParams, bias_map));
  gpu::TensorMap map = maps[4].map;
  maps[4].bind(&call, map);
  EXPECT_EQ(map.dtype, DType::f32);
  EXPECT_EQ(map.box, (std::array<std::uint32_t, 5>{32, 1, 32, 1, 1}));
  EXPECT_EQ(map.dims, (std::array<std::uint64_t, 5>{48, 2, 40, 2, 2}));
  EXPECT_EQ(map.strides, (std::array<std::uint64_t, 4>{0, 48 * 4, 0, 40 * 48 * 4}));
  for (const char* loads :
       {"bias=f32[b,1,q,k] bias_unaligned=1", "bias=f32[b,h,q,1]", "bias=f32[b,h,q,k] leftpad_k=1"}) {
    EXPECT_EQ(lowered(concat(text, loads)).launches().at(0)->tensor_maps.size(), 4U) << loads;
  }
}

TEST(HopperLowering, MapsNoKeysToAnyMemory) {
  alignas(16) std::byte memory[16];
  device::AttentionParams call = transposed_call(memory);
  call.k = call.v = {};
  call.seqlen_k = 0;
  const gpu::Lowering lowering = lowered("dtype=f16 batch_size=2 seqlen_q=40 seqlen_k=0 num_heads_q=4 head_dim=72");
  gpu::TensorMap map = lowering.launches().at(0)->tensor_maps.at(1).map;
  lowering.launches().at(0)->tensor_maps.at(1).bind(&call, map);
  EXPECT_EQ(map.address, memory);
  EXPECT_EQ(map.dims, (std::array<std::uint64_t, 5>{72, 1, 1, 1, 0}));
}

TEST(HopperLowering, FitsSharedMemoryForEveryHeadDim) {
  const std::vector<std::string> options{"",
                                         " mask=causal",
                                         " softcap=20",
                                         " dropout_p=0.1",
                                         " bias=f32[b,h,q,k]",
                                         " alibi_slopes=[h] softcap=20",
                                         " seqused_k=1"};
  for (int dim = 8; dim <= 256; dim += 8) {
    for (const int dim_v : {8, 64, 128, dim, 256}) {
      for (const int queries : {1, 700, 4096, 20000}) {
        for (const std::string& option : options) {
          const std::string text = concat("dtype=bf16 seqlen_q=", queries,
                                          " num_heads_q=8 num_heads_k=2 head_dim=", dim, " head_dim_v=", dim_v, option);
          const gpu::Lowering lowering = lowered(text);
          const gpu::KernelKey& key = lowering.launches().at(0)->key;
          EXPECT_LE(key.shared_bytes(), 227U << 10) << text;
          const auto config = gpu::config_of<Forward>(key);
          const device::WarpgroupRegisters shares = device::warpgroup_registers(config);
          const int launched = 65536 / config.threads() / 8 * 8;
          EXPECT_LE(4 * shares.producer + (config.waves - 4) * shares.consumer, config.waves * launched) << text;
        }
      }
    }
  }
}

TEST(HopperLowering, RefusesWithAReason) {
  const auto refusal = [](std::string_view text) { return lower(problem_of(text), h200()).refusal; };
  EXPECT_EQ(refusal("dtype=bf16 seqlen_q=64 head_dim=264"), "head_dim and head_dim_v must be <= 256 (got 264 and 264)");
  EXPECT_EQ(refusal("dtype=bf16 seqlen_q=64 head_dim=64 head_dim_v=60"),
            "head_dim and head_dim_v must be multiples of 8 (got 64 and 60)");
  EXPECT_EQ(refusal("dtype=bf16 seqlen_q=64 head_dim=64 unaligned=1"),
            "every row of q, k, v and out must start on 16 bytes (got one that does not)");
}

TEST(HopperLowering, TakesNoLongerForLess) {
  const double causal = lowered(kCausal).estimated_us;
  const double full = lowered("dtype=bf16 batch_size=2 seqlen_q=4096 num_heads_q=16 head_dim=128").estimated_us;
  EXPECT_LT(causal, full);
  EXPECT_GT(causal, full / 3);
  // 550 GFLOP at 700 TFLOP/s, as measured.
  EXPECT_NEAR(full, 400.0, 100.0);
}

}  // namespace
}  // namespace tilewise::backends::hopper
