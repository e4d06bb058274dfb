// What becomes of backward problems: launches, workspaces, tiles that fit, and reasons for what is refused.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backends/cuda/hopper/bwd_config.hpp"
#include "backends/cuda/hopper/bwd_schedule.hpp"
#include "support.hpp"

namespace tilewise::backends::hopper {
namespace {

using core::concat;

TEST(HopperBwdLowering, HasThreeLaunches) {
  const gpu::Lowering lowering = lowered_backward("dtype=bf16 seqlen_q=16384 num_heads_q=8 head_dim=128 mask=causal");
  const std::vector<const gpu::Launch*> launches = lowering.launches();
  ASSERT_EQ(launches.size(), 3U);
  EXPECT_EQ(launches[0]->key.body->name, "hopper_bwd_preprocess");
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

/// Tiles that are preprocessed before gradients begin, and blocks that preprocess the others meanwhile.
void expect_late_preprocess(const std::string& problem, std::int32_t first_tiles, std::int32_t late_blocks) {
  const gpu::Lowering lowering = lowered_backward("dtype=bf16 " + problem);
  const auto& preprocess = params_of<BwdPreprocess>(*lowering.launches().at(0));
  EXPECT_EQ(preprocess.first_tiles, first_tiles) << problem;
  EXPECT_EQ(preprocess.late_blocks, late_blocks) << problem;
  const gpu::Launch& gradients = *lowering.launches().at(1);
  EXPECT_EQ(gpu::config_of<Bwd>(gradients.key).late_preprocess, late_blocks > 0) << problem;
  EXPECT_TRUE(gradients.programmatic) << problem;
  EXPECT_EQ(lowering.schedule.find("meanwhile") != std::string::npos, late_blocks > 0) << lowering.schedule;
  if (late_blocks == 0) {
    EXPECT_EQ(preprocess.tiles, first_tiles) << problem;
    EXPECT_EQ(lowering.part("tiles_done"), nullptr) << problem;
  } else {
    EXPECT_EQ(params_of<Bwd>(gradients).preprocess_tiles, preprocess.grid.num_tiles) << problem;
    EXPECT_EQ(lowering.part("tiles_done")->bytes, static_cast<std::size_t>(preprocess.tiles) * sizeof(std::uint32_t));
  }
}
TEST(HopperBwdLowering, PreprocessOfLaterHeadsAreMadeMeanwhile) {
  const std::string shape = "batch_size=4 seqlen_q=4096 num_heads_q=16 ";
  expect_late_preprocess(shape + "head_dim=128 mask=causal", 6 * 32, 10);
  expect_late_preprocess(shape + "head_dim=64 mask=causal", 6 * 16, 10);
  expect_late_preprocess(shape + "head_dim=256 mask=causal", 4 * 64, 12);  // dq's sums are cleared, too
  expect_late_preprocess(shape + "head_dim=128 num_heads_k=4 mask=causal", 4 * 6 * 32, 10);
  expect_late_preprocess(
      "batch_size=4 num_heads_q=16 head_dim=128 mask=causal layout=thd max_seqlen_q=4096 max_seqlen_k=4096 "
      "total_q=9000 total_k=9000",
      6 * 32, 10);
  expect_late_preprocess(shape + "head_dim=256 mask=causal seqused_k=1", 64 * 64, 0);  // which would spill
  expect_late_preprocess("seqlen_q=4096 num_heads_q=5 head_dim=128 mask=causal", 5 * 32, 0);
  // Of queries that see few keys gradients would wait for so few blocks.
  expect_late_preprocess("batch_size=40 seqlen_q=512 num_heads_q=16 head_dim=128 mask=causal", 34 * 4, 10);
  expect_late_preprocess("batch_size=40 seqlen_q=384 num_heads_q=16 head_dim=128 mask=causal", 640 * 3, 0);
  expect_late_preprocess("batch_size=40 seqlen_q=384 num_heads_q=16 head_dim=64 mask=causal", 45 * 2, 10);
  expect_late_preprocess("seqlen_q=128 seqlen_k=8192 num_heads_q=2 head_dim=128", 2, 0);
}

TEST(HopperBwdLowering, SchedulesTilesOfKeysByACounterWhereItCan) {
  const std::string problem = "dtype=bf16 batch_size=2 seqlen_q=4096 num_heads_q=16 head_dim=128 ";
  for (const char* dims : {"", "head_dim_v=256 "}) {
    const gpu::Lowering scheduled = lowered_backward(problem + dims + "mask=causal");
    EXPECT_TRUE(gradients_config(scheduled).persistent);
    EXPECT_EQ(scheduled.part("tile_counter")->bytes, sizeof(std::uint32_t));
  }
  const std::string any_dim = "dtype=bf16 batch_size=2 seqlen_q=4096 num_heads_q=16 ";
  for (const std::string& more :
       {problem + "bias=query[b,h,q,k]", problem + "bias=query[b,h,q,k] mask=causal", problem + "bias=bool[b,1,1,k]",
        any_dim + "head_dim=96 dropout_p=0.1", any_dim + "head_dim=256 softcap=30",
        std::string("dtype=f16 batch_size=2 seqlen_q=4096 num_heads_q=16 head_dim=64")}) {
    EXPECT_TRUE(gradients_config(lowered_backward(more)).persistent) << more;
  }
  for (const char* not_so : {"deterministic=1 dropout_p=0.1", "dropout_p=0.1", "num_heads_k=4 seqused_k=1",
                             "bias=f32[b,h,q,k]", "bias=query[b,h,q,k] softcap=30"}) {
    const gpu::Lowering each = lowered_backward(problem + not_so);
    const std::uint32_t heads = std::string_view(not_so).starts_with("num_heads_k=4") ? 4 : 16;
    EXPECT_FALSE(gradients_config(each).persistent) << not_so;
    EXPECT_EQ(each.launches().at(1)->grid, gpu::Extent3{32 * heads * 2}) << not_so;
    EXPECT_EQ(each.part("tile_counter"), nullptr) << not_so;
  }
  // Nobody clears the counter where there is no preprocess.
  const gpu::Lowering unasked =
      lowered_backward("dtype=bf16 batch_size=32 seqlen_q=0 seqlen_k=512 num_heads_q=16 head_dim=128");
  EXPECT_EQ(unasked.part("tile_counter"), nullptr);
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
  EXPECT_NE(schedule_with("128x64/3/fixed order/persistent").find(", scheduled by a counter, dq in a fixed order"),
            std::string::npos);
  EXPECT_EQ(schedule_with("128x64/3/fixed order").find("scheduled by a counter"), std::string::npos);
  EXPECT_EQ(schedule_with("no such schedule"), lower(problem, h200()).lowering.schedule);
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
        const device::WarpgroupRegisters shares = device::warpgroup_registers(config);
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
