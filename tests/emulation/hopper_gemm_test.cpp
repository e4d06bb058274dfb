// Hopper's products under emulation: values beside double, whatever tiles, clusters and edges, and what they would be
// were sums of fp8 not promoted.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "backends/emulation/narrow_sum.hpp"
#include "device/common/float16.h"
#include "device/common/float8.h"
#include "device/gemm/sm90/product.h"
#include "device/gemm/sm90/scaled_product.h"
#include "device/sm90/machine_host.h"
#include "emulated.hpp"
#include "emulated_maps.hpp"

namespace tilewise::test {
namespace {

using namespace device;
using Ops = Sm90Ops<HostSm90Machine>;

struct Sizes {
  std::int32_t m, n, k;
};

gpu::TensorMap matrix_map(const void* address, DType dtype, std::int32_t rows, std::int32_t cols, std::int32_t box_rows,
                          std::int32_t box_cols) {
  gpu::TensorMap map;
  map.address = const_cast<void*>(address);
  map.dtype = dtype;
  map.rank = 2;
  const auto at = [](std::int32_t x) { return static_cast<std::uint32_t>(x); };
  map.dims = {at(cols), at(rows)};
  map.strides = {at(cols) * size_of(dtype)};
  map.box = {at(box_cols), at(box_rows)};
  if (dtype == DType::f32) map.swizzle = gpu::Swizzle::none;
  return map;
}

/// Operands, and out, which begins as NaN. `positive`: all elements are positive, so that sums grow.
template <GemmConfig C>
struct Problem {
  static constexpr bool kFp8 = C.type == kE4m3;
  using Element = std::conditional_t<kFp8, std::uint8_t, std::uint16_t>;
  static constexpr DType kDType = kFp8 ? DType::fp8_e4m3 : DType::bf16;
  static constexpr std::int32_t kScaled = 128;

  Sizes size;
  std::int32_t scale_steps;
  std::vector<Element> x, w;
  std::vector<float> x_scale, w_scale;
  std::vector<std::uint16_t> out;

  Problem(Sizes sizes, unsigned seed, bool positive = false)
      : size(sizes),
        scale_steps((sizes.k / kScaled + 3) / 4 * 4),
        x(elements(sizes.m, sizes.k)),
        w(elements(sizes.n, sizes.k)),
        x_scale(elements(sizes.k / kScaled, sizes.m)),
        w_scale(elements((sizes.n + kScaled - 1) / kScaled, scale_steps)),
        out(elements(sizes.m, sizes.n), 0x7FFF) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto draw = [&](auto& to) {
      for (auto& element : to) {
        const float number = positive ? std::fabs(normal(random)) : normal(random);
        if constexpr (kFp8) element = float_to_e4m3(number);
        if constexpr (!kFp8) element = float_to_bf16(number);
      }
    };
    draw(x), draw(w);
    std::uniform_real_distribution<float> scale(0.5f, 2.0f);
    for (float& number : x_scale) number = positive ? 1.0f : scale(random);
    for (float& number : w_scale) number = positive ? 1.0f : scale(random);
  }

  static std::size_t elements(std::int32_t rows, std::int32_t cols) {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols);
  }
  static double value(Element element) {
    if constexpr (kFp8) return e4m3_to_float(element);
    if constexpr (!kFp8) return bf16_to_float(element);
  }
  [[nodiscard]] double reference(std::int32_t row, std::int32_t col) const {
    double sum = 0.0;
    for (std::int32_t k = 0; k < size.k; ++k) {
      const std::size_t at = C.w_mn_major ? elements(k, size.n) + static_cast<std::size_t>(col)
                                          : elements(col, size.k) + static_cast<std::size_t>(k);
      double term = value(x[elements(row, size.k) + static_cast<std::size_t>(k)]) * value(w[at]);
      if constexpr (kFp8) {
        term *= x_scale[elements(k / kScaled, size.m) + static_cast<std::size_t>(row)];
        term *= w_scale[elements(col / kScaled, scale_steps) + static_cast<std::size_t>(k / kScaled)];
      }
      sum += term;
    }
    return sum;
  }

  [[nodiscard]] GemmParams params() {
    GemmParams p{};
    p.x_map = encoded_map(matrix_map(x.data(), kDType, size.m, size.k, C.x_box(), C.block_k()));
    gpu::TensorMap w_map = C.w_mn_major ? matrix_map(w.data(), kDType, size.k, size.n, C.w_box(), 64)
                                        : matrix_map(w.data(), kDType, size.n, size.k, C.w_box(), C.block_k());
    w_map.rank = 3, w_map.dims[2] = 1, w_map.strides[1] = 16, w_map.box[2] = 1;  // an only expert
    p.w_map = encoded_map(w_map);
    p.out_map = encoded_map(matrix_map(out.data(), DType::bf16, size.m, size.n, 16, 64));
    p.grid = {ceil_div(size.m, C.cluster_m()), ceil_div(size.n, C.cluster_n()), 2, 0};
    p.steps = ceil_div(size.k, C.block_k());
    p.m = size.m, p.n = size.n;
    return p;
  }

  /// Blocks: of a machine of so many multiprocessors.
  template <class Kernel>
  std::string run(const typename Kernel::Params& params, std::int32_t blocks, std::uint64_t seed) {
    backends::emulation::GlobalMemory memory;
    gpu::Region written{.name = "out", .access = gpu::Access::write, .element_bytes = 2};
    written.row = static_cast<std::int64_t>(out.size());
    memory.add(written, out.data());
    memory.add(gpu::float_workspace("w_scale", gpu::Access::read, static_cast<std::int64_t>(w_scale.size())),
               w_scale.data());
    return fault_of(host_kernel<Kernel, HostSm90Machine>(), C.threads(), blocks, seed, memory, &params, C.cluster,
                    blocks);
  }

  /// Of all of out, by the norms of error and reference: NaN where something was not written.
  [[nodiscard]] double error() const {
    double wrong = 0.0, all = 0.0;
    for (std::int32_t row = 0; row < size.m; ++row) {
      for (std::int32_t col = 0; col < size.n; ++col) {
        const double expected = reference(row, col);
        const double off = bf16_to_float(out[elements(row, size.n) + static_cast<std::size_t>(col)]) - expected;
        wrong += off * off, all += expected * expected;
      }
    }
    return std::sqrt(wrong / all);
  }
};

constexpr double kRounding = 2e-3;  // of bf16: 2^-9 at most, a normal deviation of 1.7e-3

template <GemmConfig C>
void multiply(Sizes size, std::int32_t blocks, unsigned seed) {
  Problem<C> problem(size, seed);
  const GemmParams params = problem.params();
  EXPECT_EQ((problem.template run<Sm90Gemm<Ops, C>>(params, blocks, seed)), "");
  EXPECT_LT(problem.error(), kRounding);
}

constexpr GemmConfig config(std::int32_t block_m, std::int32_t block_n, std::int32_t stages, std::int32_t cluster,
                            std::int32_t shares_x, std::int32_t w_mn_major) {
  GemmConfig c;
  c.block_m = block_m, c.block_n = block_n, c.stages = stages, c.store_buffers = 1;
  c.cluster = cluster, c.shares_x = shares_x, c.w_mn_major = w_mn_major;
  return c;
}

TEST(HopperGemm, MultipliesWholeTiles) { multiply<config(128, 128, 3, 1, 0, 0)>({256, 256, 256}, 3, 1); }
TEST(HopperGemm, EndsWhereTensorsEnd) {
  multiply<config(128, 64, 2, 1, 0, 0)>({200, 72, 136}, 2, 2);
  multiply<config(128, 64, 2, 1, 0, 1)>({136, 72, 72}, 4, 3);
}
TEST(HopperGemm, SharesWInAClusterBelow) { multiply<config(128, 128, 3, 2, 0, 0)>({384, 200, 320}, 4, 4); }
TEST(HopperGemm, SharesXInAClusterBeside) { multiply<config(256, 64, 2, 2, 1, 0)>({300, 256, 200}, 2, 5); }
TEST(HopperGemm, MultipliesWAsItLies) { multiply<config(128, 128, 2, 2, 0, 1)>({256, 128, 192}, 2, 6); }

constexpr GemmConfig scaled_config(std::int32_t block_m, std::int32_t stages, std::int32_t cluster,
                                   std::int32_t shares_x, std::int32_t parts) {
  GemmConfig c = config(block_m, 128, stages, cluster, shares_x, 0);
  c.type = kE4m3, c.parts = parts;
  return c;
}

template <GemmConfig C>
ScaledGemmParams scaled_params(Problem<C>& problem) {
  ScaledGemmParams p{};
  p.gemm = problem.params();
  p.x_scale_map = encoded_map(matrix_map(problem.x_scale.data(), DType::f32, problem.size.k / Problem<C>::kScaled,
                                         problem.size.m, 1, C.block_m));
  p.w_scale = problem.w_scale.data();
  p.w_scale_stride = problem.scale_steps;
  p.w_scale_expert_stride = 0;
  return p;
}

template <GemmConfig C>
void multiply_scaled(Sizes size, std::int32_t blocks, unsigned seed) {
  Problem<C> problem(size, seed);
  const ScaledGemmParams params = scaled_params(problem);
  EXPECT_EQ((problem.template run<Sm90ScaledGemm<Ops, C>>(params, blocks, seed)), "");
  EXPECT_LT(problem.error(), kRounding);
}

TEST(HopperScaledGemm, PromotesBySteps) { multiply_scaled<scaled_config(128, 2, 1, 0, 1)>({128, 256, 384}, 1, 1); }
TEST(HopperScaledGemm, PromotesInTurn) {
  multiply_scaled<scaled_config(128, 3, 1, 0, 2)>({200, 136, 640}, 3, 2);
  multiply_scaled<scaled_config(128, 3, 2, 0, 2)>({256, 128, 256}, 2, 3);
  multiply_scaled<scaled_config(128, 3, 2, 1, 2)>({128, 256, 128}, 2, 4);
}
TEST(HopperScaledGemm, HasTwoRowBlocksAWarpgroup) {
  multiply_scaled<scaled_config(256, 2, 2, 1, 1)>({300, 256, 512}, 2, 5);
}

/// Long sums of positive numbers: 14 bits of them are not bf16's.
TEST(HopperScaledGemm, NeedsItsPromotion) {
  constexpr GemmConfig kConfig = scaled_config(128, 3, 1, 0, 1);
  constexpr Sizes kLong{128, 128, 4096};
  Problem<kConfig> problem(kLong, 6, true);
  const ScaledGemmParams params = scaled_params(problem);
  EXPECT_EQ((problem.template run<Sm90ScaledGemm<Ops, kConfig>>(params, 1, 6)), "");
  EXPECT_LT(problem.error(), kRounding);
  // The same operands by the kernel that never promotes, whose scales are 1.
  EXPECT_EQ((problem.template run<Sm90Gemm<Ops, kConfig>>(params.gemm, 1, 6)), "");
  EXPECT_GT(problem.error(), 3 * kRounding);
}

TEST(HopperScaledGemm, SumsOfBytesKeep14Bits) {
  using backends::emulation::narrow_sum;
  const float one[] = {1.0f};
  EXPECT_EQ(narrow_sum(8192.0f, one), 8193.0f);
  EXPECT_EQ(narrow_sum(16384.0f, one), 16384.0f);
  EXPECT_EQ(narrow_sum(-16384.0f, one), -16384.0f);
  const float close[] = {-16384.0f, 3.0f, -0x1p-9f};
  EXPECT_EQ(narrow_sum(16384.0f, close), 2.0f);
  EXPECT_EQ(narrow_sum(0.0f, std::span(close).last(1)), -0x1p-9f);
  EXPECT_TRUE(std::isnan(narrow_sum(1.0f, std::vector<float>{NAN, 1.0f})));
}

}  // namespace
}  // namespace tilewise::test
