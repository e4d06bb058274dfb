// What the rules come to in single numbers, other ranks, strides and dtypes.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "formats/element.hpp"
#include "quantize_cases.hpp"

namespace tilewise::formats {
namespace {

using test::Matrix, test::QuantizedMatrix;

std::uint32_t scale_of(std::string_view format, float amax, bool power_of_two = false) {
  Matrix x(1, 1);
  x.values = {amax};
  QuantizedMatrix quantized(parse_block_format(format), 1, 1);
  quantize(x.view(), parse_block_format(format), quantized.views, power_of_two);
  return quantized.scale(0, 0);
}
float real_scale_of(float amax, bool power_of_two) {
  return __builtin_bit_cast(float, scale_of("fp8_row", amax, power_of_two));
}

TEST(QuantizeScales, OfFp8) {
  EXPECT_EQ(real_scale_of(448.0f, false), 1.0f);
  EXPECT_EQ(real_scale_of(7.0f, false), 7.0f / 448.0f);
  EXPECT_EQ(real_scale_of(0.0f, false), 1.0f);
  EXPECT_EQ(real_scale_of(1e-44f, false), 0x1p-126f);
  EXPECT_EQ(real_scale_of(448.0f, true), 1.0f);
  EXPECT_EQ(real_scale_of(std::nextafter(448.0f, 1e9f), true), 2.0f);
  EXPECT_EQ(real_scale_of(std::nextafter(448.0f, 0.0f), true), 1.0f);
  EXPECT_EQ(real_scale_of(224.0f, true), 0.5f);
  EXPECT_EQ(scale_of("fp8_1x128_e8m0", std::nextafter(448.0f, 1e9f), true), 128u);  // the same 2, as a byte
  EXPECT_EQ(scale_of("fp8_1x128_e8m0", 511.0f), 127u);                              // OCP's saturates instead
}

TEST(QuantizeScales, OfMicroscaledBlocks) {
  EXPECT_EQ(scale_of("mxfp8", 448.0f), 127u);
  EXPECT_EQ(scale_of("mxfp8", 256.0f), 127u);
  EXPECT_EQ(scale_of("mxfp8", 255.0f), 126u);
  EXPECT_EQ(scale_of("mxfp4", 6.0f), 127u);
  EXPECT_EQ(scale_of("mxfp4", 4.0f), 127u);
  EXPECT_EQ(scale_of("mxfp4", 3.9f), 126u);
  EXPECT_EQ(scale_of("mxfp4", 0.0f), 0u);
  EXPECT_EQ(scale_of("mxfp4", 1e-45f), 0u);
  EXPECT_EQ(scale_of("mxfp4", std::numeric_limits<float>::max()), 252u);
  EXPECT_EQ(scale_of("mxfp4", std::numeric_limits<float>::quiet_NaN()), 255u);
  EXPECT_EQ(scale_of("nvfp4", std::numeric_limits<float>::quiet_NaN()), 0x7Fu);
  EXPECT_EQ(scale_of("nvfp4", 6.0f), 0x7Eu);  // 448, which the factor of the tensor makes 1
  EXPECT_EQ(scale_of("nvfp4", 0.0f), 1u);
}

/// A subnormal scale is not flushed: the least block keeps its numbers.
TEST(QuantizeScales, SubnormalOnes) {
  Matrix x(1, 32);
  for (std::int64_t j = 0; j < 32; ++j) x.at(0, j) = std::ldexp(static_cast<float>(j % 4), -127);
  const BlockFormat format = parse_block_format("mxfp4");
  QuantizedMatrix quantized(format, 1, 32);
  quantize(x.view(), format, quantized.views);
  EXPECT_EQ(quantized.scale(0, 0), 0u);
  Matrix back(1, 32);
  dequantize(quantized.views, format, back.view());
  EXPECT_EQ(back.values, x.values);
}

TEST(Quantize, OddRowsEndInAHalfByteOfZero) {
  const Matrix x = Matrix::random(3, 5, 2);
  const BlockFormat format = parse_block_format("nvfp4");
  QuantizedMatrix quantized(format, 3, 5);
  quantize(x.view(), format, quantized.views);
  for (std::int64_t i = 0; i < 3; ++i) EXPECT_EQ(quantized.code(i, 5), 0u);
}

/// Each index of a leading dimension is a tensor of its own; strides may be any.
TEST(Quantize, TensorsOfHigherRank) {
  const Matrix x = Matrix::random(6, 40, 5);
  // Part i has every second row of x from row i on.
  const TensorView view(const_cast<float*>(x.values.data()), DType::f32, {2, 3, 40}, {40, 80, 1});
  for (const std::string_view name : {"fp8_tensor", "fp8_row", "fp8_128x128", "mxfp8", "nvfp4"}) {
    const BlockFormat format = parse_block_format(name);
    const auto shape = scales_shape(format, view.shape, 3);
    EXPECT_EQ(shape[0], 2);
    std::vector<std::uint8_t> elements(240), bytes(240);
    std::vector<float> reals(240), globals(2);
    const bool real = format.scale == DType::f32;
    const Quantized out{
        {elements.data(), format.element, {2, 3, 40}},
        {real ? static_cast<void*>(reals.data()) : bytes.data(), format.scale, {shape[0], shape[1], shape[2]}},
        {globals.data(), DType::f32, {2}}};
    quantize(view, format, out);
    const auto bits = static_cast<std::int64_t>(bits_of(format.element));
    for (std::int64_t lead = 0; lead < 2; ++lead) {
      Matrix part(3, 40);
      for (std::int64_t i = 0; i < 3; ++i)
        for (std::int64_t j = 0; j < 40; ++j) part.at(i, j) = x.at(lead + 2 * i, j);
      QuantizedMatrix alone(format, 3, 40);
      quantize(part.view(), format, alone.views);
      const auto* expected = static_cast<const std::uint8_t*>(alone.views.elements.data);
      EXPECT_TRUE(std::equal(expected, expected + 120 * bits / 8, elements.data() + lead * 120 * bits / 8)) << name;
      if (format.global) {
        EXPECT_EQ(globals[static_cast<std::size_t>(lead)], alone.global);
      }
      if (name == "fp8_tensor") {
        EXPECT_EQ(reals[static_cast<std::size_t>(lead)], alone.real_scale(0, 0));
      }
    }
    Matrix back(6, 40), expected(6, 40);
    dequantize(out, format, {back.values.data(), DType::f32, {2, 3, 40}, {40, 80, 1}});
    for (std::int64_t lead = 0; lead < 2; ++lead) {
      const Quantized part{{elements.data() + lead * 120 * bits / 8, format.element, {3, 40}},
                           {static_cast<std::uint8_t*>(out.scales.data) +
                                lead * shape[1] * shape[2] * static_cast<std::int64_t>(size_of(format.scale)),
                            format.scale,
                            {shape[1], shape[2]}},
                           {&globals[static_cast<std::size_t>(lead)], DType::f32, {}}};
      dequantize(part, format, {expected.values.data() + lead * 40, DType::f32, {3, 40}, {80, 1}});
    }
    EXPECT_EQ(back.values, expected.values) << name;
  }
}

/// bf16 and f16 are widened first, and rounded at the end.
TEST(Quantize, OfHalves) {
  std::vector<std::uint16_t> halves(64), back(64);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    Matrix wide(2, 32);
    for (std::size_t i = 0; i < halves.size(); ++i) {
      store_element(dtype, halves.data(), static_cast<std::int64_t>(i), 0.37 * static_cast<double>(i) - 7.0);
      wide.values[i] = static_cast<float>(load_element(dtype, halves.data(), static_cast<std::int64_t>(i)));
    }
    const BlockFormat format = parse_block_format("nvfp4");
    QuantizedMatrix narrow_in(format, 2, 32), wide_in(format, 2, 32);
    quantize({halves.data(), dtype, {2, 32}}, format, narrow_in.views);
    quantize(wide.view(), format, wide_in.views);
    EXPECT_EQ(narrow_in.global, wide_in.global);
    dequantize(narrow_in.views, format, {back.data(), dtype, {2, 32}});
    dequantize(wide_in.views, format, wide.view());
    for (std::int64_t i = 0; i < 64; ++i) {
      std::uint16_t expected[1];
      store_element(dtype, expected, 0, wide.values[static_cast<std::size_t>(i)]);
      EXPECT_EQ(back[static_cast<std::size_t>(i)], expected[0]);
    }
  }
}

TEST(Dequantize, BeyondF32IsInfinite) {
  const BlockFormat format = parse_block_format("fp8_row");
  QuantizedMatrix stored(format, 1, 2);
  Matrix x(1, 2);
  x.values = {448.0f, -448.0f};
  quantize(x.view(), format, stored.views);
  *static_cast<float*>(stored.views.scales.data) = std::numeric_limits<float>::max();
  dequantize(stored.views, format, x.view());
  EXPECT_EQ(x.at(0, 0), HUGE_VALF);
  EXPECT_EQ(x.at(0, 1), -HUGE_VALF);
}

}  // namespace
}  // namespace tilewise::formats
