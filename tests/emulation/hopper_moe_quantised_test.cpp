// Quantised weights of Hopper's expert layers under emulation: every format, and every scale.
#include "hopper_moe_problem.hpp"

namespace tilewise::test {
namespace {

/// Eight elements times a scale, as the lanes of the kernel have them, beside one rounding of the exact product.
template <int kTo>
void widen_every_scale() {
  using Widen = WidenE2m1<HostSm90Machine, kTo>;
  const auto rounded = [](float x) { return HostSm90Machine::pack<kTo>(x, x) & 0xFFFFu; };
  const auto is_nan = [](std::uint32_t bits) { return std::isnan(element_to_float<kTo>(bits)); };
  for (const std::uint32_t word : {0x76543210u, 0xFEDCBA98u, 0x0F1E2D3Cu}) {
    for (int byte = 0; byte < 256; ++byte) {
      const auto scale = static_cast<std::uint8_t>(byte);
      for (int first = 0; first < 4; ++first) {
        auto factor = Widen::factor_of_e8m0(scale);
        std::uint32_t pair = Widen::multiply(Widen::pair(word, first), factor);
        while (factor.rest != 0) factor = Widen::next(factor), pair = Widen::multiply(pair, factor);
        const std::uint32_t small = Widen::multiply(Widen::pair(word, first), Widen::factor_of_e4m3(scale));
        for (int half = 0; half < 2; ++half) {
          const float element = e2m1_to_float(static_cast<std::uint8_t>(word >> (4 * (first + 4 * half)) & 15u));
          const std::uint32_t expected = rounded(element * e8m0_to_float(scale)), got = pair >> (16 * half) & 0xFFFFu;
          EXPECT_TRUE(got == expected || (is_nan(got) && is_nan(expected))) << byte << " " << element;
          const std::uint32_t folded = rounded(element * e4m3_to_float(scale) / Widen::kFolded),
                              other = small >> (16 * half) & 0xFFFFu;
          EXPECT_TRUE(other == folded || (is_nan(other) && is_nan(folded))) << byte << " " << element;
        }
      }
    }
  }
}
TEST(HopperMoeDecode, WidensUnderEveryScale) {
  widen_every_scale<kBf16>();
  widen_every_scale<kF16>();
}

/// Quantised weights. Steps are 128 bytes of a row, and scales come 32 bytes at a time.
constexpr MoeDecodeConfig quantised_config(MoeWeights weights, std::int32_t block_n, std::int32_t held_ids,
                                           std::int32_t stages, std::int32_t consumers = 1,
                                           std::int32_t row_blocks = 1) {
  MoeDecodeConfig c = config(block_n, held_ids, stages, consumers, row_blocks);
  c.weights = weights, c.depth = 128 * c.elements_of_byte(), c.scale_windows = 2;
  return c;
}
template <MoeWeights W>
void compute_quantised(unsigned seed) {
  compute<quantised_config(W, 8, 1, 3)>({1, 2, 256, 64, 4}, 2, seed);
  compute<quantised_config(W, 8, 1, 4)>({5, 3, 1184, 96, 3}, 3, seed + 1);
  compute<quantised_config(W, 16, 2, 5, 2)>({11, 4, 320, 160, 5}, 2, seed + 2, true);
  compute<quantised_config(W, 32, 2, 3, 2, 2)>({21, 2, 288, 288, 3}, 2, seed + 3);
  compute<quantised_config(W, 8, 1, 3, 3)>({4, 2, 288, 224, 3}, 2, seed + 5);
  compute<quantised_config(W, 16, 0, 6)>({150, 2, 160, 96, 9}, 3, seed + 4);
}
TEST(HopperMoeDecode, WidensMxfp4) { compute_quantised<kMoeMxfp4>(50); }
TEST(HopperMoeDecode, WidensNvfp4) { compute_quantised<kMoeNvfp4>(60); }
TEST(HopperMoeDecode, WidensFp8AndScalesSums) { compute_quantised<kMoeFp8Blocks>(70); }
TEST(HopperMoeDecode, ReadsScalesWhereverTheyLie) {
  compute<quantised_config(kMoeMxfp4, 8, 1, 3)>({3, 2, 1120, 96, 3}, 2, 55, true, 5);
  compute<quantised_config(kMoeFp8Blocks, 8, 1, 3)>({3, 2, 1120, 160, 3}, 2, 56, false, 4);
}

}  // namespace
}  // namespace tilewise::test
