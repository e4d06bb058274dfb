// Quantising and dequantising on each instruction set of this machine, equal to the reference in every bit.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "backends/cpu/formats/quantize.hpp"
#include "formats/element.hpp"

namespace tilewise::backends::cpu {
namespace {

/// A tensor [2, rows, columns] with room behind its rows, and its quantised form.
struct Tensors {
  std::vector<std::byte> numbers, elements, scales;
  float global[2] = {};
  TensorView view;
  formats::Quantized quantized;

  Tensors(const BlockFormat& format, DType dtype, std::int64_t rows, std::int64_t columns)
      : numbers(static_cast<std::size_t>(2 * rows * (columns + 3)) * size_of(dtype)),
        elements(static_cast<std::size_t>(2 * rows * (columns + 6)), std::byte{0x5A}) {
    const std::int64_t step = columns + 3, packed_step = columns + columns % 2 + 4;
    view = {numbers.data(), dtype, {2, rows, columns}, {rows * step, step, 1}};
    const auto blocks = formats::scales_shape(format, view.shape, 3);
    scales.assign(static_cast<std::size_t>(blocks[0] * blocks[1] * blocks[2]) * size_of(format.scale), std::byte{0x5A});
    quantized.elements = {elements.data(), format.element, {2, rows, columns}, {rows * packed_step, packed_step, 1}};
    quantized.scales = {scales.data(), format.scale, {blocks[0], blocks[1], blocks[2]}};
    if (format.global) quantized.global = {global, DType::f32, {2}};
  }
};

/// Numbers of all sizes; special ones in some rows.
void fill(Tensors& tensors, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::uniform_int_distribution<int> exponent(-20, 10), chance(0, 99);
  const TensorView& view = tensors.view;
  const double special[] = {HUGE_VAL, -HUGE_VAL, NAN, 0.0, -0.0, 1e-45, 60000.0};
  for (std::int64_t row = 0; row < 2 * view.shape[1]; ++row) {
    const double size = std::ldexp(1.0, exponent(random));
    for (std::int64_t j = 0; j < view.shape[2]; ++j) {
      const int draw = chance(random);
      const double number = row % 3 == 0 && draw < 7 ? special[draw] : size * normal(random);
      formats::store_element(view.dtype, view.data, row * view.strides[1] + j, number);
    }
  }
}

class FormatKernelsTest : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (format_kernels(GetParam()) == nullptr || !isa_status(GetParam()).available)
      GTEST_SKIP() << "not on this machine";
  }
};

TEST_P(FormatKernelsTest, AgreeWithTheReference) {
  const FormatKernels& kernels = *format_kernels(GetParam());
  std::uint32_t seed = 1;
  for (const std::string_view name : {"fp8_tensor", "fp8_row", "fp8_1x128", "fp8_128x128", "fp8_1x128_e8m0",
                                      "fp8_128x128_e8m0", "mxfp8", "mxfp4", "nvfp4"}) {
    const BlockFormat format = parse_block_format(name);
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      for (const auto& [rows, columns] : {std::pair{1, 1}, {3, 31}, {5, 64}, {140, 130}, {2, 333}}) {
        const std::string what = std::string(name) + " " + describe(TensorView(nullptr, dtype, {2, rows, columns}));
        Tensors got(format, dtype, rows, columns), expected(format, dtype, rows, columns);
        fill(got, seed);
        fill(expected, seed++);
        for (const bool power_of_two : {false, true}) {
          if (power_of_two && (name == "mxfp8" || format.element == DType::fp4_e2m1)) continue;
          quantize(kernels, got.view, format, got.quantized, power_of_two);
          formats::quantize(expected.view, format, expected.quantized, power_of_two);
          ASSERT_EQ(got.elements, expected.elements) << what;
          ASSERT_EQ(got.scales, expected.scales) << what;
          ASSERT_EQ(std::memcmp(got.global, expected.global, sizeof got.global), 0) << what;
        }
        dequantize(kernels, got.quantized, format, got.view);
        formats::dequantize(expected.quantized, format, expected.view);
        for (std::int64_t i = 0; i < 2 * rows * (columns + 3); ++i) {
          const double mine = formats::load_element(dtype, got.numbers.data(), i);
          const double theirs = formats::load_element(dtype, expected.numbers.data(), i);
          ASSERT_TRUE(mine == theirs || (std::isnan(mine) && std::isnan(theirs)))
              << what << " at " << i << ": " << mine << ", " << theirs;
          ASSERT_EQ(std::signbit(mine) && !std::isnan(mine), std::signbit(theirs) && !std::isnan(theirs)) << what;
        }
      }
    }
  }
}

/// Every element, by every e8m0 scale or by some f32 ones; every number of 16 bits.
TEST_P(FormatKernelsTest, AllElementsAndAllHalves) {
  const FormatKernels& kernels = *format_kernels(GetParam());
  std::vector<std::uint8_t> codes(256), packed(8);
  for (std::size_t i = 0; i < 256; ++i) codes[i] = static_cast<std::uint8_t>(i);
  for (std::size_t i = 0; i < 8; ++i) packed[i] = static_cast<std::uint8_t>(2 * i | (2 * i + 1) << 4);
  std::vector<float> numbers(256);
  for (int byte = 0; byte < 256; ++byte) {
    const float scale = device::e8m0_to_float(static_cast<std::uint8_t>(byte));
    kernels.decode_e4m3[kNumbersF32](codes.data(), 256, scale, 1.0f, numbers.data());
    for (std::size_t i = 0; i < 256; ++i) {
      const float expected = device::e4m3_to_float(codes[i]) * scale;
      ASSERT_TRUE(numbers[i] == expected || (std::isnan(numbers[i]) && std::isnan(expected))) << i << ", " << byte;
    }
    kernels.decode_e2m1[kNumbersF32](packed.data(), 16, scale, 1.0f, numbers.data());
    for (std::size_t i = 0; i < 16; ++i) {
      const float expected = device::e2m1_to_float(static_cast<std::uint8_t>(i)) * scale;
      ASSERT_TRUE(numbers[i] == expected || std::isnan(expected)) << i << ", " << byte;
    }
  }
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  std::vector<std::uint8_t> elements(65536);
  kernels.encode_e4m3[kNumbersBf16](halves.data(), 65536, 1.0f, elements.data());
  for (std::size_t i = 0; i < halves.size(); ++i)
    ASSERT_EQ(elements[i], device::float_to_e4m3(device::bf16_to_float(halves[i]))) << i;
  kernels.encode_e2m1[kNumbersF16](halves.data(), 65536, 1.0f, elements.data());
  for (std::size_t i = 0; i < halves.size(); ++i)
    ASSERT_EQ(device::e2m1_at(elements.data(), static_cast<std::int64_t>(i)),
              device::float_to_e2m1(device::f16_to_float(halves[i])))
        << i;
}

INSTANTIATE_TEST_SUITE_P(Isas, FormatKernelsTest, testing::Values(Isa::generic, Isa::avx2, Isa::avx512, Isa::neon),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });

}  // namespace
}  // namespace tilewise::backends::cpu
