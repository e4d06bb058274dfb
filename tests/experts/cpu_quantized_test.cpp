// Quantised rows and weights on every instruction set that this machine has, against the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>

#include "backends/reference/linear/reference_linear.hpp"
#include "backends/reference/moe/reference_moe.hpp"
#include "cpu_support.hpp"
#include "quantized.hpp"
#include "tilewise/error.hpp"

namespace tilewise {
namespace {

using namespace experts_test;

constexpr std::string_view kWeightFormats[] = {"fp8_tensor", "fp8_row", "fp8_128x128", "fp8_128x128_e8m0",
                                               "mxfp8",      "mxfp4",   "nvfp4"};
constexpr std::string_view kRowFormats[] = {"fp8_tensor", "fp8_row", "fp8_1x128", "fp8_1x128_e8m0", "mxfp8"};

void quantize_rows(Tensors& tensors, const BlockFormat& format, Matrix& x, operations::BlockScales& scales) {
  const Quantized drawn = draw_quantized(tensors, format, 1, x.rows, x.columns);
  x = drawn.matrix();
  scales = drawn.elements.scales;
}

/// Drawn as others are, with weights and now and then rows in these formats.
LinearParams draw_quantized_linear(Tensors& tensors, DType dtype, std::string_view weights) {
  LinearParams p = draw_linear(tensors, dtype);
  verify::Random& random = tensors.random;
  tensors.deviation = 1 / std::sqrt(static_cast<double>(p.w.columns + 1));
  p.w = draw_quantized(tensors, parse_block_format(weights), p.w.num_experts, p.w.rows, p.w.columns).elements;
  tensors.deviation = 1;
  if (p.w.dtype == DType::fp8_e4m3 && weights != "mxfp8" && random.chance(0.3)) lay_by_columns(p.w);
  if (random.chance(0.4))
    quantize_rows(tensors, parse_block_format(kRowFormats[random.integer(0, 4)]), p.x, p.x_scales);
  return p;
}

void expect_linear(LinearParams& p, Tensors& tensors, const std::string& what) {
  LinearParams reference = p;
  reference.out = tensors.matrix(DType::f64, p.out.rows, p.out.columns);
  backends::reference::linear_forward(reference);
  for (const Isa isa : isas()) {
    if (!has(gemm_kernels_of(isa), p.x.dtype, p.w.dtype)) continue;
    run(p, gemm_kernels_of(isa));
    expect_near(p.out, reference.out, rounding_of(p.out.dtype), 1e-5, std::string(to_string(isa)) + " " + what);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(CpuQuantizedLinear, EqualsTheReference) {
  for (std::uint64_t seed = 0; seed < 210; ++seed) {
    Tensors tensors(seed);
    const std::string_view format = kWeightFormats[seed % std::size(kWeightFormats)];
    const DType dtype = tensors.random.pick({DType::f32, DType::bf16, DType::f16});
    LinearParams p = draw_quantized_linear(tensors, dtype, format);
    std::ostringstream what;
    what << to_string(p.x.dtype) << " x " << format << " seed " << seed;
    expect_linear(p, tensors, what.str());
    if (HasFatalFailure()) return;
  }
}

ExpertMatrices draw_weights(Tensors& tensors, std::string_view format, const ExpertMatrices& like) {
  tensors.deviation = 1 / std::sqrt(static_cast<double>(like.columns));
  const ExpertMatrices drawn =
      draw_quantized(tensors, parse_block_format(format), like.num_experts, like.rows, like.columns).elements;
  tensors.deviation = 1;
  return drawn;
}

void expect_experts(MoeParams& p, Tensors& tensors, double own, double rest, const std::string& what) {
  MoeParams reference = p;
  reference.out = tensors.matrix(DType::f64, p.out.rows, p.out.columns);
  backends::reference::moe_forward(reference);
  for (const Isa isa : isas()) {
    const DType h = p.h_format.defined() || p.x.dtype != DType::fp8_e4m3 ? p.x.dtype : DType::bf16;
    if (!has(gemm_kernels_of(isa), p.x.dtype, p.gate_up.dtype) || !has(gemm_kernels_of(isa), h, p.down.dtype)) continue;
    run(p, gemm_kernels_of(isa));
    expect_near(p.out, reference.out, own, rest, std::string(to_string(isa)) + " " + what);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(CpuQuantizedExperts, EqualTheReference) {
  constexpr std::size_t kFormats = std::size(kWeightFormats);
  for (std::uint64_t seed = 0; seed < 140; ++seed) {
    Tensors tensors(seed);
    verify::Random& random = tensors.random;
    const DType dtype = random.pick({DType::f32, DType::bf16, DType::f16});
    MoeParams p = draw_moe(tensors, dtype);
    const std::string_view first = kWeightFormats[seed % kFormats], second = kWeightFormats[seed / kFormats % kFormats];
    p.gate_up = draw_weights(tensors, first, p.gate_up);
    p.down = draw_weights(tensors, second, p.down);
    if (random.chance(0.4))
      quantize_rows(tensors, parse_block_format(kRowFormats[random.integer(0, 4)]), p.x, p.x_scales);
    if (random.chance(0.4))
      p.h_format =
          parse_block_format(random.pick<std::string_view>({"fp8_row", "fp8_1x128", "fp8_1x128_e8m0", "mxfp8"}));
    if (random.chance(0.2)) {
      p.norm_weight = tensors.vectors(DType::f32, p.down.num_experts, p.down.rows);
      p.norm_epsilon = 1e-3;
    }
    std::ostringstream what;
    what << to_string(p.x.dtype) << " x " << first << " x " << second << " h " << to_string(p.h_format) << " seed "
         << seed;
    // An intermediate value near a tie is quantised to either neighbour.
    const double own = rounding_of(p.x.dtype == DType::fp8_e4m3 ? DType::bf16 : dtype);
    const double rest = p.h_format.defined() ? 0.05 : 4 * own + 4e-5;
    expect_experts(p, tensors, std::max(own, rounding_of(p.out.dtype)), rest, what.str());
    if (HasFatalFailure()) return;
  }
}

TEST(CpuExperts, NormaliseWhatAnExpertGives) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    Tensors tensors(31);
    MoeParams p = draw_moe(tensors, dtype);
    p.norm_weight = tensors.vectors(DType::f32, p.down.num_experts, p.down.rows);
    p.norm_epsilon = 1e-5;
    p.weight_on_input = false;
    expect_experts(p, tensors, rounding_of(dtype), dtype == DType::f64 ? 1e-12 : 4 * rounding_of(dtype) + 1e-5,
                   std::string(to_string(dtype)));
  }
}

/// Bytes of any kind, as scales that no quantiser would make: the least and the greatest, and blocks far from another.
TEST(CpuQuantizedLinear, ScalesOfAnySize) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Tensors tensors(seed);
    verify::Random& random = tensors.random;
    const std::string_view format = random.pick<std::string_view>({"mxfp8", "mxfp4", "fp8_128x128_e8m0"});
    LinearParams p = draw_quantized_linear(tensors, random.pick({DType::f32, DType::bf16}), format);
    p.activation = {};
    p.bias = {};
    p.out = tensors.matrix(DType::f32, p.out.rows, p.out.columns);
    const operations::BlockScales& s = p.w.scales;
    auto* bytes = static_cast<std::uint8_t*>(s.data);
    const int middle = random.pick({0, 60, 127, 190, 225}), spread = random.pick({0, 8, 60});
    for (std::int64_t i = 0; i < p.w.num_experts * s.expert_stride; ++i)
      bytes[i] = static_cast<std::uint8_t>(
          std::clamp<int>(middle + static_cast<int>(random.integer(-spread, spread)), 0, 225));
    std::ostringstream what;
    what << to_string(p.x.dtype) << " x " << format << " about " << middle << " seed " << seed;
    expect_linear(p, tensors, what.str());
    if (HasFatalFailure()) return;
  }
}

TEST(CpuQuantizedLinear, NaNInAScaleReachesItsOutputsAlone) {
  for (const std::string_view format : {"fp8_row", "fp8_128x128", "mxfp8", "mxfp4", "nvfp4"}) {
    Tensors tensors(3);
    LinearParams p{};
    p.w = draw_quantized(tensors, parse_block_format(format), 1, 150, 300).elements;
    operations::BlockScales& s = p.w.scales;
    const std::int64_t at = 70 / s.block_rows * s.row_stride + 33 / s.block_columns * s.column_stride;
    if (s.dtype == DType::f32)
      static_cast<float*>(s.data)[at] = std::nanf("");
    else
      static_cast<std::uint8_t*>(s.data)[at] = s.dtype == DType::fp8_e8m0 ? 0xFF : 0x7F;
    for (const std::int64_t tokens : {3, 40}) {
      p.x = tensors.matrix(DType::bf16, tokens, 300);
      p.out = tensors.matrix(DType::f32, tokens, 150);
      for (const Isa isa : isas()) {
        if (!has(gemm_kernels_of(isa), DType::bf16, p.w.dtype)) continue;
        run(p, gemm_kernels_of(isa));
        for (std::int64_t n = 0; n < 150; ++n)
          ASSERT_EQ(std::isnan(experts_test::at(p.out, tokens - 1, n)), n / s.block_rows == 70 / s.block_rows)
              << to_string(isa) << " " << format << " " << tokens << " rows, output " << n;
      }
    }
  }
}

TEST(CpuQuantizedLinear, StridesBeyond32Bits) {
  constexpr std::int64_t kStride = (std::int64_t{1} << 33) + 8192;  // in elements, two a byte
  const Reserved memory(2 * kStride);
  ASSERT_NE(memory.data(), MAP_FAILED);
  Tensors tensors(5);
  LinearParams p{};
  p.x = tensors.matrix(DType::bf16, 40, 96);
  p.out = tensors.matrix(DType::f32, 40, 70);
  p.w = draw_quantized(tensors, parse_block_format("mxfp4"), 3, 70, 96).elements;
  p.groups = tensors.integers(DType::i64, {0, 3, 5, 40});
  LinearParams far = p;
  far.w.data = memory.data();
  far.w.expert_stride = kStride;
  far.out = tensors.matrix(DType::f32, 40, 70);
  for (std::int64_t e = 0; e < 3; ++e)
    std::memcpy(static_cast<std::byte*>(far.w.data) + e * kStride / 2,
                static_cast<std::byte*>(p.w.data) + e * p.w.expert_stride / 2, 70 * 96 / 2);
  for (const Isa isa : isas()) {
    if (!has(gemm_kernels_of(isa), DType::bf16, p.w.dtype)) continue;
    run(p, gemm_kernels_of(isa));
    run(far, gemm_kernels_of(isa));
    EXPECT_EQ(values_of(far.out), values_of(p.out)) << to_string(isa);
  }
}

TEST(CpuQuantizedLinear, RefusesWhatItCannotRead) {
  Tensors tensors(4);
  LinearParams p{};
  p.x = tensors.matrix(DType::bf16, 2, 64);
  p.out = tensors.matrix(DType::f32, 2, 6);
  const auto message = [&] {
    try {
      run(p, backends::cpu::kGenericGemm);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  p.w = draw_quantized(tensors, parse_block_format("mxfp4"), 1, 6, 64).elements;
  const ExpertMatrices good = p.w;
  EXPECT_EQ(message(), "");
  p.w.scales.block_columns = 48;
  EXPECT_EQ(message(),
            "w: scales beside fp4_e2m1 must be fp8_e8m0 of 32 columns or fp8_e4m3 of 16 (got fp8_e8m0 of 48)");
  p.w.scales.data = nullptr;
  EXPECT_EQ(message(), "w: must have scales beside fp4_e2m1 (got none)");
  p.w = good;
  p.w.row_stride = 63;
  EXPECT_EQ(message(), "w: strides of fp4_e2m1 must be even (got 384 and 63)");
  p.w.row_stride = 1, p.w.column_stride = 6;
  EXPECT_EQ(message(), "w: the last dimension must have stride 1 where its blocks are short (got 6)");
  p.w = good;
  p.w.expert_scales = tensors.vector(DType::bf16, 1);
  EXPECT_EQ(message(), "w: experts' scales must be f32, and of quantised weights (got bf16 beside fp4_e2m1)");
  p.w = tensors.weights(DType::bf16, 1, 6, 64);
  p.x.dtype = DType::fp8_e4m3;
  EXPECT_EQ(message(), "w: dtype must be fp8_e4m3 or fp4_e2m1 (got bf16)");
  p.x.dtype = DType::i32;
  EXPECT_EQ(message(), "x: dtype must be f32, bf16, f16, f64 or fp8_e4m3 (got i32)");
}

}  // namespace
}  // namespace tilewise
