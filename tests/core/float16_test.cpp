// Conversions of bf16 and f16: every value both ways, and rounding between neighbours.
#include "device/common/float16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace tilewise::device {
namespace {

TEST(Float16, EveryValueComesBack) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float f16 = f16_to_float(half), bf16 = bf16_to_float(half);
    if (std::isnan(f16)) {
      ASSERT_TRUE(std::isnan(f16_to_float(float_to_f16(f16))));
    } else {
      ASSERT_EQ(float_to_f16(f16), half);
    }
    if (std::isnan(bf16)) {
      ASSERT_TRUE(std::isnan(bf16_to_float(float_to_bf16(bf16))));
    } else {
      ASSERT_EQ(float_to_bf16(bf16), half);
    }
  }
}

TEST(Float16, KnownValues) {
  EXPECT_EQ(f16_to_float(0x3C00), 1.0f);
  EXPECT_EQ(f16_to_float(0x7BFF), 65504.0f);
  EXPECT_EQ(f16_to_float(0x0001), 0x1p-24f);
  EXPECT_EQ(float_to_f16(65519.9f), 0x7BFF);
  EXPECT_EQ(float_to_f16(65520.0f), 0x7C00);
  EXPECT_EQ(float_to_f16(0x1p-25f), 0);  // a tie, to even
  EXPECT_EQ(float_to_f16(0x1.8p-25f), 1);
  EXPECT_EQ(bf16_to_float(0xBF80), -1.0f);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7F80);
}

TEST(Float16, RoundsToNearestEven) {
  std::mt19937 engine(1);
  std::uniform_real_distribution<float> exponent(-26.0f, 15.9f);
  for (int i = 0; i < 200000; ++i) {
    const float value = std::exp2(exponent(engine));
    const std::uint16_t half = float_to_f16(value);
    const double error = std::abs(double{f16_to_float(half)} - value);
    for (const int step : {-1, 1}) {
      if (half == 0 && step < 0) continue;
      const auto neighbour = static_cast<std::uint16_t>(half + step);
      const double other = std::abs(double{f16_to_float(neighbour)} - value);
      ASSERT_TRUE(error < other || (error == other && half % 2 == 0)) << value;
    }
  }
}

}  // namespace
}  // namespace tilewise::device
