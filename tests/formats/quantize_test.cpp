// quantize() and dequantize() against the rules applied by an independent, slow search.
#include "formats/quantize.hpp"

#include <gtest/gtest.h>

#include <string>

#include "quantize_cases.hpp"

namespace tilewise::formats {
namespace {

using test::Matrix, test::QuantizedMatrix, test::SlowQuantizer;

struct Case {
  std::string format;
  bool power_of_two = false;
};

class Quantize : public testing::TestWithParam<Case> {
 protected:
  [[nodiscard]] BlockFormat format() const { return parse_block_format(GetParam().format); }

  /// Quantises, and compares every scale and element.
  void expect_as_slow(const Matrix& x) const {
    const BlockFormat f = format();
    QuantizedMatrix got(f, x.rows, x.columns);
    quantize(x.view(), f, got.views, GetParam().power_of_two);
    SlowQuantizer slow{f, GetParam().power_of_two};
    slow.see(x);
    if (f.global) {
      EXPECT_EQ(got.global, slow.global);
    }
    const std::int64_t rows = f.block_rows == 0 ? std::max<std::int64_t>(x.rows, 1) : f.block_rows;
    const std::int64_t columns = f.block_columns == 0 ? std::max<std::int64_t>(x.columns, 1) : f.block_columns;
    for (std::int64_t i = 0; i < x.rows; i += rows) {
      for (std::int64_t j = 0; j < x.columns; j += columns) {
        bool nan = false;
        for_block(x, i, rows, j, columns, [&](std::int64_t a, std::int64_t b) { nan |= std::isnan(x.at(a, b)); });
        const auto scale = slow.scale(SlowQuantizer::amax(x, i, rows, j, columns), nan);
        ASSERT_EQ(got.scale(i / rows, j / columns), scale.bits) << "block " << i / rows << ", " << j / columns;
        for_block(x, i, rows, j, columns, [&](std::int64_t a, std::int64_t b) {
          ASSERT_EQ(got.code(a, b), slow.code(x.at(a, b), scale.divisor)) << x.at(a, b) << " at " << a << ", " << b;
        });
      }
    }
    expect_dequantized(x, got);
  }

 private:
  template <typename Visit>
  static void for_block(const Matrix& x, std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns,
                        Visit&& visit) {
    for (std::int64_t i = row; i < std::min(row + rows, x.rows); ++i)
      for (std::int64_t j = column; j < std::min(column + columns, x.columns); ++j) visit(i, j);
  }

  /// The exact product of what is stored, rounded to f32 once.
  void expect_dequantized(const Matrix& x, const QuantizedMatrix& stored) const {
    const BlockFormat f = format();
    Matrix back(x.rows, x.columns);
    dequantize(stored.views, f, back.view());
    for (std::int64_t i = 0; i < x.rows; ++i) {
      for (std::int64_t j = 0; j < x.columns; ++j) {
        const std::int64_t row = f.block_rows == 0 ? 0 : i / f.block_rows;
        const std::int64_t column = f.block_columns == 0 ? 0 : j / f.block_columns;
        const std::uint32_t bits = stored.scale(row, column);
        double scale = f.scale == DType::f32 ? stored.real_scale(row, column) : test::kE4m3.value(bits);
        if (f.scale == DType::fp8_e8m0) scale = bits == 255 ? NAN : std::ldexp(1.0, static_cast<int>(bits) - 127);
        const test::Definition& element = f.element == DType::fp4_e2m1 ? test::kE2m1 : test::kE4m3;
        const double value = element.value(stored.code(i, j)) * scale * (f.global ? double{stored.global} : 1.0);
        if (std::isnan(value)) {
          ASSERT_TRUE(std::isnan(back.at(i, j))) << i << ", " << j;
        } else {
          ASSERT_EQ(back.at(i, j), static_cast<float>(value)) << i << ", " << j;
        }
      }
    }
  }
};

TEST_P(Quantize, RandomMatricesOfManyShapes) {
  std::uint32_t seed = 1;
  for (const auto& [rows, columns] : {std::pair{1, 1}, {3, 16}, {5, 37}, {2, 128}, {130, 33}, {129, 259}, {1, 300}})
    expect_as_slow(Matrix::random(rows, columns, seed++));
}

TEST_P(Quantize, SpecialNumbers) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  for (const float special : {kInfinity, -kInfinity, kNan, std::numeric_limits<float>::max(), 0x1p-149f, -0.0f}) {
    Matrix x = Matrix::random(4, 150, 9);
    x.at(1, 3) = special;
    x.at(2, 149) = special;
    expect_as_slow(x);
    std::ranges::fill(x.values, special);
    expect_as_slow(x);
  }
  Matrix x = Matrix::random(3, 70, 4);
  x.at(0, 0) = kInfinity, x.at(0, 1) = kNan, x.at(1, 69) = -kInfinity;
  expect_as_slow(x);
}

/// Every exponent that an f32 can have, so that every scale is at its clamps.
TEST_P(Quantize, AllMagnitudes) {
  Matrix x(277, 48);
  std::mt19937 random(3);
  std::uniform_real_distribution<float> fraction(-1.0f, 1.0f);
  for (std::int64_t i = 0; i < x.rows; ++i)
    for (std::int64_t j = 0; j < x.columns; ++j) x.at(i, j) = std::ldexp(fraction(random), static_cast<int>(i) - 148);
  expect_as_slow(x);
}

/// Numbers that lie between two elements, whose scale is 1 or a power of two.
TEST_P(Quantize, TiesGoToEven) {
  const bool fp4 = format().element == DType::fp4_e2m1;
  const test::Definition& definition = fp4 ? test::kE2m1 : test::kE4m3;
  Matrix x(static_cast<std::int64_t>(definition.codes()), 16);
  for (std::int64_t i = 0; i + 2 < x.rows; ++i) {
    const auto code = static_cast<std::uint32_t>(i);
    const double middle = (definition.value(code) + definition.value(code + 1)) / 2.0;
    for (std::int64_t j = 1; j < x.columns; ++j) x.at(i, j) = static_cast<float>(j % 2 == 0 ? middle : -middle);
    x.at(i, 0) = static_cast<float>(definition.largest());
  }
  x.at(0, 0) = fp4 ? 2688.0f : 448.0f;
  expect_as_slow(x);
}

TEST_P(Quantize, EmptyMatrices) {
  expect_as_slow(Matrix(0, 40));
  expect_as_slow(Matrix(3, 0));
  // Without elements a block of everything still has its scale.
  const BlockFormat f = format();
  QuantizedMatrix got(f, 3, 0);
  quantize(Matrix(3, 0).view(), f, got.views, GetParam().power_of_two);
  if (f.scale == DType::f32 && f.block_columns == BlockFormat::kAll) {
    EXPECT_EQ(got.real_scale(0, 0), 1.0f);
  }
  if (f.global) {
    EXPECT_EQ(got.global, 1.0f);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Quantize,
                         testing::Values(Case{"fp8_tensor"}, Case{"fp8_row"}, Case{"fp8_1x128"}, Case{"fp8_128x128"},
                                         Case{"fp8_row", true}, Case{"fp8_1x128", true}, Case{"fp8_128x128", true},
                                         Case{"fp8_1x128_e8m0"}, Case{"fp8_128x128_e8m0", true}, Case{"mxfp8"},
                                         Case{"mxfp4"}, Case{"nvfp4"}),
                         [](const auto& tested) {
                           return tested.param.format + (tested.param.power_of_two ? "_power_of_two" : "");
                         });

}  // namespace
}  // namespace tilewise::formats
