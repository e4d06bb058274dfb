// What becomes of linear layers: launches, their workspace and tensor maps, tiles, and reasons for what is refused.
#include <string>
#include <string_view>

#include "backends/cuda/hopper/linear.hpp"
#include "backends/cuda/hopper/linear_kernels.hpp"
#include "support.hpp"
#include "tilewise/linear.hpp"

namespace tilewise::backends::hopper {
namespace {

using core::concat;

constexpr std::string_view kBf16 = "dtype=bf16 ", kFp8 = "dtype=fp8_e4m3 x_format=fp8_1x128 w_format=fp8_128x128 ";

LinearProblem linear_problem(const std::string& text) {
  return LinearProblem(parse_problem(concat("linear device=cuda ", text)));
}
gpu::Lowering lowered_linear(const std::string& text) {
  gpu::Outcome outcome = lower(linear_problem(text), h200());
  EXPECT_EQ(outcome.refusal, "") << text;
  return std::move(outcome.lowering);
}

TEST(HopperLinearLowering, PreparesGroupsAndScales) {
  EXPECT_EQ(kernels_of(lowered_linear(concat(kBf16, "tokens=0 n=64 k=64"))), "");
  EXPECT_EQ(kernels_of(lowered_linear(concat(kBf16, "tokens=100 n=0 k=64"))), "");
  EXPECT_EQ(kernels_of(lowered_linear(concat(kBf16, "tokens=100 n=64 k=64"))), "gemm ");
  EXPECT_EQ(kernels_of(lowered_linear(concat(kBf16, "tokens=100 n=64 k=64 groups=counts_i32 num_experts=4"))),
            "gemm_prepare grouped_gemm ");
  EXPECT_EQ(kernels_of(lowered_linear(concat(kFp8, "tokens=100 n=64 k=64"))), "gemm_prepare scaled_gemm ");
}

TEST(HopperLinearLowering, TakesTilesThatKeepTheMachineBusy) {
  const auto launch_of = [](const std::string& text) { return *lowered_linear(text).launches().back(); };
  const gpu::Launch large = launch_of(concat(kBf16, "tokens=8192 n=8192 k=8192"));
  EXPECT_EQ(gpu::config_of<Gemm>(large.key).block_n, 256);
  EXPECT_EQ(large.cluster, gpu::Extent3{2});
  EXPECT_EQ(large.grid, gpu::Extent3{132});
  EXPECT_EQ(gpu::config_of<Gemm>(launch_of(concat(kBf16, "tokens=64 n=4096 k=4096")).key).block_n, 64);
  EXPECT_EQ(gpu::config_of<ScaledGemm>(launch_of(concat(kFp8, "tokens=4096 n=4096 k=7168")).key).block_m, 256);
}

TEST(HopperLinearLowering, SwapsSidesOfRowsByExpert) {
  constexpr std::string_view kGroups = "tokens=16384 n=1536 k=2048 groups=offsets_i32 num_experts=";
  const gpu::Lowering swapped = lowered_linear(concat(kBf16, kGroups, "128"));
  EXPECT_EQ(kernels_of(swapped), "gemm_prepare grouped_gemm ");
  ASSERT_EQ(swapped.launches().back()->tensor_maps.size(), 2U + device::kRowBoxes);
  std::uint32_t rows = 0;
  for (const gpu::TensorMapParameter& map : swapped.launches().back()->tensor_maps) {
    if (map.map.rank == 2 && map.map.box[1] != 16) rows += map.map.box[1];
  }
  EXPECT_EQ(rows, 64U + 32 + 8);  // and one of 16, which that of out has too
  EXPECT_EQ(kernels_of(lowered_linear(concat(kBf16, kGroups, "128 w_transposed=1"))), "gemm_prepare gemm ");
  EXPECT_EQ(kernels_of(lowered_linear(concat(kBf16, kGroups, "300"))), "gemm_prepare gemm ");
}

TEST(HopperLinearLowering, PlacesScalesWhereMapsReadThem) {
  const gpu::Lowering scaled = lowered_linear(concat(kFp8, "tokens=1001 n=4096 k=7168"));
  ASSERT_NE(scaled.part(kXScales), nullptr);
  EXPECT_EQ(scaled.part(kXScales)->bytes, 56U * 1004 * 4);
  EXPECT_EQ(scaled.part(kWScales)->bytes, 32U * 56 * 4);
  EXPECT_EQ(scaled.part(kRowOffsets), nullptr);
  const gpu::TensorMapParameter& map = scaled.launches().back()->tensor_maps.back();
  EXPECT_EQ(map.part, kXScales);
  EXPECT_EQ(map.offset, scaled.part(kXScales)->offset);
}

TEST(HopperLinearLowering, RefusesWithAReason) {
  const auto refusal = [](const std::string& text) { return lower(linear_problem(text), h200()).refusal; };
  EXPECT_EQ(refusal("dtype=bf16 tokens=1 n=64 k=64 unaligned=1"),
            "every row of x, w and out must start on 16 bytes (got one that does not)");
  EXPECT_EQ(refusal("dtype=bf16 tokens=1 n=64 k=0"), "k must be > 0 (got 0)");
  EXPECT_EQ(refusal("dtype=bf16 tokens=300000000 n=64 k=8"), "tokens must be <= 2^28 (got 300000000)");
  EXPECT_EQ(refusal("dtype=bf16 tokens=8 n=200000000 k=8 groups=offsets_i32 num_experts=1000000"),
            "tiles of rows and weights must be <= 2^30 (got 1000000 * 3125000)");
  EXPECT_EQ(refusal(concat(kFp8, "tokens=8 n=64 k=64 w_transposed=1")),
            "k of quantised weights must be contiguous (got n)");
}

}  // namespace
}  // namespace tilewise::backends::hopper
