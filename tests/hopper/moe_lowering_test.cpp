// What becomes of expert layers: launches, their workspace and tensor maps, estimates, and reasons for what is refused.
#include <string>
#include <string_view>

#include "backends/cuda/hopper/moe.hpp"
#include "backends/cuda/hopper/moe_kernels.hpp"
#include "support.hpp"
#include "tilewise/moe.hpp"

namespace tilewise::backends::hopper {
namespace {

using core::concat;

constexpr std::string_view kQwen = "hidden=2048 intermediate=768 num_experts=128 top_k=8 ";

MoeProblem moe_problem(const std::string& text) {
  return MoeProblem(parse_problem(concat("moe device=cuda dtype=bf16 ", text)));
}
gpu::Lowering lowered_layer(const std::string& text) {
  gpu::Outcome outcome = lower(moe_problem(text), h200());
  EXPECT_EQ(outcome.refusal, "") << text;
  return std::move(outcome.lowering);
}
std::string kernels_of(const gpu::Lowering& lowering) {
  std::string names;
  for (const gpu::Launch* launch : lowering.launches()) core::append(names, concat(launch->key.body->name, " "));
  return names;
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

TEST(HopperMoeLowering, WidensQuantisedWeightsOfFewTokens) {
  for (const std::string format : {"mxfp4", "nvfp4", "fp8_128x128"}) {
    const std::string layer = concat(kQwen, "w_format=", format, " ");
    EXPECT_EQ(kernels_of(lowered_layer(concat(layer, "tokens=1"))), "moe_decode ");
    EXPECT_EQ(kernels_of(lowered_layer(concat(layer, "tokens=64"))), "moe_sort moe_decode ");
    EXPECT_EQ(lower(moe_problem(concat(layer, "tokens=4096")), h200()).refusal,
              concat("tokens * top_k must be <= 48 * num_experts with w_format=", format, " (got 32768)"));
    // The maps are of bytes, half as many of a row of four bits.
    const gpu::Lowering few = lowered_layer(concat(layer, "tokens=1"));
    for (const gpu::TensorMapParameter& map : few.launches().back()->tensor_maps) {
      EXPECT_EQ(map.map.dtype, DType::u8);
      EXPECT_EQ(map.map.box[0], 128U);
    }
  }
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

/// Measured there: 28 us, 2,294 and, of Mixtral's, 174 and 16,493; in mxfp4 24, 144 and, of 64 tokens, 690.
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
