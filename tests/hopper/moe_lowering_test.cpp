// What becomes of expert layers: launches, their workspace and tensor maps, estimates, and reasons for what is refused.
#include <cstddef>
#include <string>
#include <string_view>

#include "backends/cuda/hopper/moe.hpp"
#include "backends/cuda/hopper/moe_kernels.hpp"
#include "support.hpp"
#include "tilewise/moe.hpp"

namespace tilewise::backends::hopper {
namespace {

using core::concat;

constexpr std::string_view kFp8Layer = "x_format=fp8_1x128 h_format=fp8_1x128 w_format=fp8_128x128 ";
constexpr std::string_view kQwen = "hidden=2048 intermediate=768 num_experts=128 top_k=8 ";

MoeProblem moe_problem(const std::string& text, std::string_view pass = "moe") {
  const bool names_dtype = text.starts_with("dtype=");
  return MoeProblem(parse_problem(concat(pass, " device=cuda ", names_dtype ? "" : "dtype=bf16 ", text)));
}
gpu::Lowering lowered_layer(const std::string& text, std::string_view pass = "moe") {
  gpu::Outcome outcome = lower(moe_problem(text, pass), h200());
  EXPECT_EQ(outcome.refusal, "") << text;
  return std::move(outcome.lowering);
}

TEST(HopperMoeLowering, TakesMoreLaunchesOfMoreTokens) {
  EXPECT_EQ(kernels_of(lowered_layer(concat(kQwen, "tokens=0"))), "");
  EXPECT_EQ(kernels_of(lowered_layer(concat(kQwen, "tokens=1"))), "moe_decode ");
  EXPECT_EQ(kernels_of(lowered_layer(concat(kQwen, "tokens=16"))), "moe_decode ");
  EXPECT_EQ(kernels_of(lowered_layer(concat(kQwen, "tokens=64"))), "moe_sort moe_decode ");
  EXPECT_EQ(kernels_of(lowered_layer(concat(kQwen, "tokens=512"))), "moe_sort moe_sort moe_decode ");
  const gpu::Lowering many = lowered_layer(concat(kQwen, "tokens=4096"));
  EXPECT_EQ(kernels_of(many), "moe_sort moe_sort moe_gather moe_layer ");
  const gpu::Launch& layer = *many.launches().back();
  EXPECT_EQ(layer.cluster, gpu::Extent3{2});
  EXPECT_EQ(layer.grid, gpu::Extent3{132});
  EXPECT_TRUE(layer.programmatic);
}

/// By tiles of many rows, however few there are.
TEST(HopperMoeLowering, SavesSumsOfTheFirstProduct) {
  const gpu::Lowering few = lowered_layer(concat(kQwen, "tokens=1 save_gate_up=1"));
  EXPECT_EQ(kernels_of(few), "moe_sort moe_gather moe_layer ");
  const gpu::TensorMapParameter& ups = few.launches().back()->tensor_maps[5];
  EXPECT_EQ(ups.param_offset, offsetof(device::MoeLayerParams, sums_map) + sizeof(device::TensorMap));
  EXPECT_EQ(ups.map.box[0], 32U);
  EXPECT_EQ(lower(moe_problem(concat(kQwen, "tokens=64 w_format=mxfp4 save_gate_up=1")), h200()).refusal,
            "w_format must be none with save_gate_up (got mxfp4)");
  EXPECT_EQ(
      lower(moe_problem("tokens=1 hidden=0 intermediate=64 num_experts=2 top_k=1 save_gate_up=1"), h200()).refusal,
      "hidden must be > 0 with save_gate_up (got 0)");
}

TEST(HopperMoeLowering, WidensQuantisedWeightsOfFewTokens) {
  for (const std::string format : {"mxfp4", "nvfp4", "fp8_128x128"}) {
    const std::string layer = concat(kQwen, "w_format=", format, " ");
    EXPECT_EQ(kernels_of(lowered_layer(concat(layer, "tokens=1"))), "moe_decode ");
    EXPECT_EQ(kernels_of(lowered_layer(concat(layer, "tokens=64"))), "moe_sort moe_decode ");
    EXPECT_EQ(lower(moe_problem(concat(layer, "tokens=4096")), h200()).refusal,
              concat("tokens * top_k must be <= 48 * num_experts with w_format=", format,
                     " and without x_format (got 32768)"));
    // The maps are of bytes, half as many of a row of four bits.
    const gpu::Lowering few = lowered_layer(concat(layer, "tokens=1"));
    for (const gpu::TensorMapParameter& map : few.launches().back()->tensor_maps) {
      EXPECT_EQ(map.map.dtype, DType::u8);
      EXPECT_EQ(map.map.box[0], 128U);
    }
  }
}

TEST(HopperMoeLowering, MultipliesRowsInFp8) {
  const std::string layer =
      concat("dtype=fp8_e4m3 ", kFp8Layer, "hidden=7168 intermediate=2048 num_experts=256 top_k=8 ");
  EXPECT_EQ(kernels_of(lowered_layer(concat(layer, "tokens=0"))), "");
  EXPECT_EQ(kernels_of(lowered_layer(concat(layer, "tokens=1"))),
            "moe_sort moe_gather moe_scaled_product moe_scaled_product moe_combine ");
  const gpu::Lowering many = lowered_layer(concat(layer, "tokens=4096"));
  EXPECT_EQ(kernels_of(many), "moe_sort moe_sort moe_gather moe_scaled_product moe_scaled_product moe_combine ");
  EXPECT_EQ(many.part(kMoeGathered)->bytes, 4096U * 8 * 7168);
  EXPECT_EQ(many.part(kMoeH)->bytes, 4096U * 8 * 2048);
  EXPECT_EQ(many.part(kMoeHScales)->bytes, 4096U * 8 * 16 * 4);
  EXPECT_EQ(many.part(kMoeParts)->bytes, 4096U * 8 * 7168 * 2);
}

TEST(HopperMoeLowering, PointsMapsIntoTheWorkspace) {
  const gpu::Lowering many = lowered_layer(concat(kQwen, "tokens=4096"));
  ASSERT_NE(many.part(kMoeGathered), nullptr);
  EXPECT_EQ(many.part(kMoeGathered)->bytes, 4096U * 8 * 2048 * 2);
  EXPECT_EQ(many.part(kMoeH)->bytes, 4096U * 8 * 768 * 2);
  std::size_t in_workspace = 0;
  for (const gpu::TensorMapParameter& map : many.launches().back()->tensor_maps) {
    if (map.part.empty()) continue;
    EXPECT_EQ(map.offset, many.part(map.part)->offset) << map.part;
    ++in_workspace;
  }
  EXPECT_EQ(in_workspace, 2U + 2 * device::kRowBoxes);
  EXPECT_EQ(lowered_layer(concat(kQwen, "tokens=1")).part(kMoeGathered), nullptr);
}

/// Measured there: 28 us, 2,294 and, of Mixtral's, 174 and 16,493; in mxfp4 24, 144 and, of 64 tokens, 690;
/// DeepSeek-V3's in fp8 5,033 and 14,137.
TEST(HopperMoeLowering, EstimatesWhatAnH200Takes) {
  constexpr std::string_view kMixtral = "hidden=4096 intermediate=14336 num_experts=8 top_k=2 ";
  const auto us = [](const std::string& text) { return lowered_layer(text).estimated_us; };
  EXPECT_NEAR(us(concat(kQwen, "tokens=1")), 28, 6);
  EXPECT_NEAR(us(concat(kQwen, "tokens=16384")), 2294, 300);
  EXPECT_NEAR(us(concat(kMixtral, "tokens=1")), 174, 30);
  EXPECT_NEAR(us(concat(kMixtral, "tokens=16384")), 16493, 1800);
  EXPECT_NEAR(us(concat(kQwen, "tokens=1 w_format=mxfp4")), 24, 6);
  EXPECT_NEAR(us(concat(kMixtral, "tokens=1 w_format=mxfp4")), 144, 30);
  EXPECT_NEAR(us(concat(kMixtral, "tokens=64 w_format=mxfp4")), 690, 200);
  const std::string deepseek =
      concat("dtype=fp8_e4m3 ", kFp8Layer, "hidden=7168 intermediate=2048 num_experts=256 top_k=8 ");
  EXPECT_NEAR(us(concat(deepseek, "tokens=4096")), 5033, 500);
  EXPECT_NEAR(us(concat(deepseek, "tokens=16384")), 14137, 1000);
}

TEST(HopperMoeLowering, HasAProductForEachGradient) {
  const auto kernels = [](const std::string& options) {
    return kernels_of(lowered_layer(concat(kQwen, "tokens=4096 ", options), "moe_backward"));
  };
  const std::string first = "moe_sort moe_sort moe_gather moe_gather_dout moe_dh moe_slopes ";
  EXPECT_EQ(kernels(""), first + "moe_dx moe_sum moe_dw moe_dw moe_dweights ");
  EXPECT_EQ(kernels("dgate_up=0 ddown=0"), first + "moe_dx moe_sum moe_dweights ");
  EXPECT_EQ(kernels("dx=0 dtopk_weights=0 ddown=0"), first + "moe_dw ");
  EXPECT_EQ(kernels("dx=0 dgate_up=0 ddown=0"), first + "moe_dweights ");
  EXPECT_EQ(kernels("dx=0 dgate_up=0 ddown=0 dtopk_weights=0 gate_up_bias=bf16 down_bias=bf16 dgate_up_bias=1 "
                    "ddown_bias=1"),
            first + "expert_dbias expert_dbias ");

  const std::string saved = "moe_sort moe_sort moe_gather_dout moe_dh moe_saved_slopes ";
  EXPECT_EQ(kernels("save_gate_up=1 dgate_up=0"), saved + "moe_dx moe_sum moe_dw moe_dweights ");
  EXPECT_EQ(kernels("save_gate_up=1 dx=0 ddown=0 dtopk_weights=0"),
            "moe_sort moe_sort moe_gather moe_gather_dout moe_dh moe_saved_slopes moe_dw ");

  // h's gradient and h share a part.
  const gpu::Lowering all = lowered_layer(concat(kQwen, "tokens=4096"), "moe_backward");
  EXPECT_EQ(all.part(kMoeProducts)->bytes, 4096U * 8 * 1536 * 2);
  EXPECT_EQ(all.part(kMoeH)->bytes, 4096U * 8 * 768 * 2);
  EXPECT_EQ(all.launches()[8]->cluster, gpu::Extent3{2});
  for (const gpu::Launch* launch : all.launches()) {
    for (const gpu::TensorMapParameter& map : launch->tensor_maps) {
      if (map.part.empty()) continue;
      EXPECT_EQ(map.offset, all.part(map.part)->offset) << map.part;
    }
  }
  EXPECT_NE(all.schedule.find("tiles of 128 weights' rows by up to 256; slopes by 256"), std::string::npos)
      << all.schedule;
}

/// Measured there through autograd: 6,301 us and, of Mixtral's, 11,687 and 46,943.
TEST(HopperMoeLowering, EstimatesWhatGradientsTakeOfAnH200) {
  constexpr std::string_view kMixtral = "hidden=4096 intermediate=14336 num_experts=8 top_k=2 ";
  const auto us = [](const std::string& text) { return lowered_layer(text, "moe_backward").estimated_us; };
  EXPECT_NEAR(us(concat(kQwen, "tokens=16384")), 6301, 700);
  EXPECT_NEAR(us(concat(kMixtral, "tokens=4096")), 11687, 1200);
  EXPECT_NEAR(us(concat(kMixtral, "tokens=16384")), 46943, 3000);
}

TEST(HopperMoeLowering, RefusesGradientsWithAReason) {
  const auto refusal = [](const std::string& text) {
    return lower(moe_problem(concat(text, " hidden=64 intermediate=64 top_k=2"), "moe_backward"), h200()).refusal;
  };
  EXPECT_EQ(refusal("tokens=8 num_experts=4"), "");
  EXPECT_EQ(refusal("tokens=8 num_experts=4 w_format=mxfp4"), "w_format must be none in the backward pass (got mxfp4)");
  EXPECT_EQ(refusal("tokens=8 num_experts=4 gate_up_bias=f32 dgate_up_bias=1 weight_on_input=1"),
            "dgate_up_bias must not be wanted with weight_on_input (got both)");
  EXPECT_EQ(refusal("tokens=0 num_experts=4"), "tokens must be > 0 in the backward pass (got 0)");
  EXPECT_EQ(refusal("tokens=8 num_experts=300"), "num_experts must be <= 256 in the backward pass (got 300)");
  EXPECT_EQ(refusal("tokens=8 num_experts=4 unaligned=1"),
            "every row of x, dout, weights and gradients must start on 16 bytes (got one that does not)");
}

TEST(HopperMoeLowering, RefusesWithAReason) {
  const auto refusal = [](const std::string& text) { return lower(moe_problem(text), h200()).refusal; };
  EXPECT_EQ(refusal("tokens=1 hidden=64 intermediate=36 num_experts=2 top_k=1"),
            "intermediate must be a multiple of 8 (got 36)");
  EXPECT_EQ(refusal("tokens=1 hidden=72 intermediate=64 num_experts=2 top_k=1 w_format=mxfp4"),
            "hidden must be a multiple of 32 with w_format=mxfp4 (got 72)");
  EXPECT_EQ(refusal("tokens=1 hidden=64 intermediate=72 num_experts=2 top_k=1 w_format=fp8_128x128"),
            "intermediate must be a multiple of 16 with w_format=fp8_128x128 (got 72)");
  EXPECT_EQ(refusal("tokens=1 hidden=64 intermediate=64 num_experts=2 top_k=1 unaligned=1"),
            "every row of x, out, gate_up and down must start on 16 bytes (got one that does not)");
  EXPECT_EQ(refusal("dtype=fp8_e4m3 x_format=fp8_1x128 h_format=fp8_1x128 w_format=fp8_128x128 tokens=1 hidden=64 "
                    "intermediate=96 num_experts=2 top_k=1"),
            "intermediate must be a multiple of 64 with x_format=fp8_1x128 (got 96)");
  EXPECT_EQ(refusal("tokens=1 hidden=64 intermediate=64 num_experts=2000 top_k=1"),
            "num_experts must be <= 1024 with tokens=1 (got 2000)");
  EXPECT_EQ(refusal("tokens=1 hidden=64 intermediate=64 num_experts=2 top_k=0"), "top_k must be > 0 (got 0)");
  EXPECT_EQ(refusal("tokens=300000000 hidden=64 intermediate=64 num_experts=2 top_k=2"),
            "tokens * top_k must be <= 2^28 (got 300000000 * 2)");
  EXPECT_EQ(refusal("tokens=100000000 hidden=16777216 intermediate=64 num_experts=2 top_k=2"),
            "tiles of experts' rows and weights must be <= 2^30 (got 25000002 * 262146)");
}

}  // namespace
}  // namespace tilewise::backends::hopper
