// Matrices to quantise, memory for the result, and an independent quantiser: straight from the definitions, in doubles
// that are rounded to f32 where the rules say f32.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "formats/quantize.hpp"
#include "slow_formats.hpp"

namespace tilewise::test {

/// Row-major numbers of a matrix.
struct Matrix {
  std::int64_t rows, columns;
  std::vector<float> values;

  Matrix(std::int64_t m, std::int64_t n) : rows(m), columns(n), values(static_cast<std::size_t>(m * n)) {}
  [[nodiscard]] float& at(std::int64_t i, std::int64_t j) { return values[static_cast<std::size_t>(i * columns + j)]; }
  [[nodiscard]] float at(std::int64_t i, std::int64_t j) const {
    return values[static_cast<std::size_t>(i * columns + j)];
  }
  [[nodiscard]] TensorView view() const { return {const_cast<float*>(values.data()), DType::f32, {rows, columns}}; }

  /// Rows of many magnitudes, zeros among them.
  static Matrix random(std::int64_t rows, std::int64_t columns, std::uint32_t seed) {
    Matrix matrix(rows, columns);
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::uniform_int_distribution<int> exponent(-30, 30), chance(0, 9);
    for (std::int64_t i = 0; i < rows; ++i) {
      const float size = chance(random) == 0 ? 0.0f : std::ldexp(1.0f, exponent(random) / (1 + chance(random)));
      for (std::int64_t j = 0; j < columns; ++j) matrix.at(i, j) = chance(random) == 0 ? 0.0f : size * normal(random);
    }
    return matrix;
  }
};

/// Memory of a quantised matrix, full of what quantize() must overwrite.
class QuantizedMatrix {
 public:
  QuantizedMatrix(const BlockFormat& format, std::int64_t rows, std::int64_t columns) : format_(format) {
    const bool packed = format.element == DType::fp4_e2m1;
    stride_ = packed ? (columns + 1) / 2 : columns;
    elements_.assign(static_cast<std::size_t>(rows * stride_), 0xA5);
    const auto blocks = formats::scales_shape(format, {rows, columns}, 2);
    block_columns_ = blocks[1];
    scales_.assign(static_cast<std::size_t>(blocks[0] * blocks[1]), 0xDEADBEEFu);
    bytes_.assign(scales_.size(), 0xA5);
    views.elements = {elements_.data(), format.element, {rows, columns}, {packed ? 2 * stride_ : stride_, 1}};
    void* scales = format.scale == DType::f32 ? static_cast<void*>(scales_.data()) : bytes_.data();
    views.scales = {scales, format.scale, {blocks[0], blocks[1]}};
    if (format.global) views.global = {&global, DType::f32, {1}};
  }
  QuantizedMatrix(const QuantizedMatrix&) = delete;
  QuantizedMatrix& operator=(const QuantizedMatrix&) = delete;

  /// Bits of the element's code, and of the scale of block (i, j).
  [[nodiscard]] std::uint32_t code(std::int64_t i, std::int64_t j) const {
    const bool packed = format_.element == DType::fp4_e2m1;
    const std::uint8_t byte = elements_[static_cast<std::size_t>(i * stride_ + (packed ? j / 2 : j))];
    return packed ? (j % 2 == 0 ? byte & 15u : byte >> 4) : byte;
  }
  [[nodiscard]] std::uint32_t scale(std::int64_t i, std::int64_t j) const {
    const auto index = static_cast<std::size_t>(i * block_columns_ + j);
    return format_.scale == DType::f32 ? scales_[index] : bytes_[index];
  }
  [[nodiscard]] float real_scale(std::int64_t i, std::int64_t j) const {
    return __builtin_bit_cast(float, scale(i, j));
  }

  formats::Quantized views;
  float global = -1.0f;

 private:
  BlockFormat format_;
  std::int64_t stride_, block_columns_;
  std::vector<std::uint8_t> elements_, bytes_;
  std::vector<std::uint32_t> scales_;
};

/// The rules once more.
struct SlowQuantizer {
  BlockFormat format;
  bool power_of_two = false;
  float global = 1.0f;

  static float divide(float a, float b) { return static_cast<float>(double{a} / double{b}); }

  static float amax(const Matrix& x, std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) {
    float most = 0.0f;
    for (std::int64_t i = row; i < std::min(row + rows, x.rows); ++i)
      for (std::int64_t j = column; j < std::min(column + columns, x.columns); ++j)
        if (std::isfinite(x.at(i, j))) most = std::max(most, std::abs(x.at(i, j)));
    return most;
  }

  void see(const Matrix& x) {
    const float most = amax(x, 0, x.rows, 0, x.columns);
    if (format.global) global = most == 0.0f ? 1.0f : std::max(divide(most, 2688.0f), 0x1p-126f);
  }
  /// The scale's bits and what elements are divided by.
  struct Scale {
    std::uint32_t bits;
    float divisor;
  };
  [[nodiscard]] Scale scale(float most, bool nan) const {
    const bool fp4 = format.element == DType::fp4_e2m1;
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    if (fp4 && nan) return {format.scale == DType::fp8_e8m0 ? 255u : 0x7Fu, kNan};
    if (format.scale == DType::fp8_e4m3) {
      const float wanted = std::min(448.0f, divide(divide(most, 6.0f), global));
      const std::uint32_t code = std::max<std::uint32_t>(kE4m3.nearest(wanted), 1);
      return {code, static_cast<float>(kE4m3.value(code) * double{global})};
    }
    float real = most == 0.0f ? 1.0f : std::max(divide(most, 448.0f), 0x1p-126f);
    if (power_of_two) {
      int exponent = -126;
      while (std::ldexp(1.0, exponent) < real) ++exponent;
      real = std::ldexp(1.0f, exponent);
    }
    if (format.scale == DType::f32) return {__builtin_bit_cast(std::uint32_t, real), real};
    int exponent = -127;
    if (power_of_two) {
      exponent = std::ilogb(real);
    } else if (most != 0.0f) {
      exponent = std::clamp(std::ilogb(most) - (fp4 ? 2 : 8), -127, 127);
    }
    return {static_cast<std::uint32_t>(exponent + 127), std::ldexp(1.0f, exponent)};
  }
  [[nodiscard]] std::uint32_t code(float value, float divisor) const {
    const bool fp4 = format.element == DType::fp4_e2m1;
    const Definition& definition = fp4 ? kE2m1 : kE4m3;
    const float quotient = divide(value, divisor);
    if (std::isnan(quotient)) return fp4 ? 0 : 0x7F;
    const double largest = definition.largest();
    return definition.nearest(std::clamp<double>(quotient, -largest, largest));
  }
};

}  // namespace tilewise::test
