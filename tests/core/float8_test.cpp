// Conversions of fp8 e4m3 against a table that is made of the format's definition, in doubles.
#include "device/common/float8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace tilewise::device {
namespace {

/// Sign, four bits of exponent with bias 7, three of mantissa; 0x7F is NaN.
double by_definition(std::uint32_t code) {
  const double sign = code & 0x80u ? -1.0 : 1.0;
  const std::uint32_t exponent = (code >> 3) & 15u, mantissa = code & 7u;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * mantissa / 8.0 * std::pow(2.0, -6);
  return sign * (1.0 + mantissa / 8.0) * std::pow(2.0, static_cast<int>(exponent) - 7);
}

/// The code of the nearest value, of two equally near ones that with an even code.
std::uint8_t nearest(double value) {
  std::uint32_t best = 0;
  for (std::uint32_t code = 0; code < 127; ++code) {
    const double distance = std::abs(by_definition(code) - std::abs(value));
    const double least = std::abs(by_definition(best) - std::abs(value));
    if (distance < least || (distance == least && code % 2 == 0)) best = code;
  }
  return static_cast<std::uint8_t>(best | (std::signbit(value) ? 0x80u : 0u));
}

TEST(Float8, EveryValueIsTheDefinitions) {
  for (std::uint32_t code = 0; code < 256; ++code) {
    const float value = e4m3_to_float(static_cast<std::uint8_t>(code));
    if (std::isnan(by_definition(code))) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_EQ(float_to_e4m3(value) & 0x7F, 0x7F);
    } else {
      EXPECT_EQ(value, by_definition(code)) << code;
      EXPECT_EQ(std::signbit(value), code >= 128) << code;
      EXPECT_EQ(float_to_e4m3(value), code);
    }
  }
}

TEST(Float8, RoundsToNearestEvenBetweenAnyTwo) {
  for (std::uint32_t code = 0; code + 1 < 127; ++code) {
    const double low = by_definition(code), high = by_definition(code + 1);
    const auto middle = static_cast<float>((low + high) / 2.0);
    for (const float value : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)}) {
      ASSERT_EQ(float_to_e4m3(value), nearest(value)) << value;
      ASSERT_EQ(float_to_e4m3(-value), nearest(-value)) << -value;
    }
  }
  std::mt19937 random(7);
  std::uniform_real_distribution<float> exponent(-14.0f, 10.0f);
  for (int n = 0; n < 20000; ++n) {
    const float value = std::exp2(exponent(random)) * (n % 2 == 0 ? 1.0f : -1.0f);
    ASSERT_EQ(float_to_e4m3(value), nearest(std::clamp(value, -448.0f, 448.0f))) << value;
  }
}

TEST(Float8, ClampsAndKeepsNaN) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(float_to_e4m3(449.0f), 0x7E);
  EXPECT_EQ(float_to_e4m3(1e30f), 0x7E);
  EXPECT_EQ(float_to_e4m3(kInfinity), 0x7E);
  EXPECT_EQ(float_to_e4m3(-kInfinity), 0xFE);
  EXPECT_EQ(float_to_e4m3(std::numeric_limits<float>::quiet_NaN()), 0x7F);
  EXPECT_EQ(float_to_e4m3(-std::numeric_limits<float>::quiet_NaN()), 0x7F);
  EXPECT_EQ(float_to_e4m3(-0.0f), 0x80);
  EXPECT_EQ(float_to_e4m3(0x1p-10f), 0);  // a tie, to even
  EXPECT_EQ(float_to_e4m3(0x1.8p-10f), 1);
  EXPECT_EQ(float_to_e4m3(std::numeric_limits<float>::denorm_min()), 0);
}

}  // namespace
}  // namespace tilewise::device
