// Conversions of e4m3, e5m2 and e2m1 against tables made of the formats' definitions, in doubles.
#include "device/common/float8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "device/common/float4.h"
#include "device/common/float8_e5m2.h"
#include "slow_formats.hpp"

namespace tilewise::device {
namespace {

using test::Definition;

struct Conversion {
  std::string name;
  const Definition* of;
  float (*widen)(std::uint8_t);
  std::uint8_t (*narrow)(float);
  std::uint8_t of_nan;
};

class NarrowFloat : public testing::TestWithParam<Conversion> {};

TEST_P(NarrowFloat, EveryValueIsTheDefinitions) {
  const auto& [name, of, widen, narrow, of_nan] = GetParam();
  const Definition& definition = *of;
  for (std::uint32_t code = 0; code < 2 * definition.codes(); ++code) {
    const float value = widen(static_cast<std::uint8_t>(code));
    const double expected = definition.value(code);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << code;
      EXPECT_EQ(narrow(value), of_nan) << code;
      continue;
    }
    EXPECT_EQ(value, expected) << code;
    EXPECT_EQ(std::signbit(value), code >= definition.codes()) << code;
    if (std::isfinite(expected)) {
      EXPECT_EQ(narrow(value), code);
    }
  }
}

TEST_P(NarrowFloat, RoundsToNearestEvenBetweenAnyTwo) {
  const auto& [name, of, widen, narrow, of_nan] = GetParam();
  const Definition& definition = *of;
  for (std::uint32_t code = 0; code + 1 < definition.codes(); ++code) {
    const double low = definition.value(code), high = definition.value(code + 1);
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    const auto middle = static_cast<float>((low + high) / 2.0);
    for (const float value : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)}) {
      ASSERT_EQ(narrow(value), definition.nearest(value)) << value;
      ASSERT_EQ(narrow(-value), definition.nearest(-value)) << -value;
    }
  }
  const auto largest = static_cast<float>(definition.largest());
  std::mt19937 random(7);
  std::uniform_real_distribution<float> exponent(-20.0f, std::log2(largest) + 2.0f);
  for (int n = 0; n < 20000; ++n) {
    const float value = std::exp2(exponent(random)) * (n % 2 == 0 ? 1.0f : -1.0f);
    ASSERT_EQ(narrow(value), definition.nearest(std::clamp(value, -largest, largest))) << value;
  }
}

/// Every float of 16 upper bits, and the ones beside it.
TEST_P(NarrowFloat, AgreesWithTheSearchOverAllExponents) {
  const auto& [name, of, widen, narrow, of_nan] = GetParam();
  const Definition& definition = *of;
  const auto largest = static_cast<float>(definition.largest());
  for (std::uint32_t upper = 0; upper < 0x10000u; upper += 37) {
    for (const std::uint32_t lower : {0u, 1u, 0xFFFFu}) {
      const auto value = __builtin_bit_cast(float, upper << 16 | lower);
      if (!std::isfinite(value)) continue;
      ASSERT_EQ(narrow(value), definition.nearest(std::clamp(value, -largest, largest))) << value;
    }
  }
}

TEST_P(NarrowFloat, ClampsAndHasOneNaN) {
  const auto& [name, of, widen, narrow, of_nan] = GetParam();
  const Definition& definition = *of;
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  const auto largest = static_cast<float>(definition.largest());
  for (const float value : {std::nextafter(largest, kInfinity), 2.0f * largest, 1e30f, kInfinity}) {
    EXPECT_EQ(widen(narrow(value)), largest) << value;
    EXPECT_EQ(widen(narrow(-value)), -largest) << value;
  }
  EXPECT_EQ(narrow(kNan), of_nan);
  EXPECT_EQ(narrow(-kNan), of_nan);
  EXPECT_EQ(narrow(__builtin_bit_cast(float, 0x7F800001u)), of_nan);
  EXPECT_EQ(narrow(-0.0f), definition.codes());
  EXPECT_EQ(narrow(std::numeric_limits<float>::denorm_min()), 0);
}

INSTANTIATE_TEST_SUITE_P(Formats, NarrowFloat,
                         testing::Values(Conversion{"e4m3", &test::kE4m3, e4m3_to_float, float_to_e4m3, 0x7F},
                                         Conversion{"e5m2", &test::kE5m2, e5m2_to_float, float_to_e5m2, 0x7F},
                                         Conversion{"e2m1", &test::kE2m1, e2m1_to_float, float_to_e2m1, 0}),
                         [](const auto& conversion) { return conversion.param.name; });

TEST(Float8, KnownBytes) {
  EXPECT_EQ(float_to_e4m3(449.0f), 0x7E);
  EXPECT_EQ(float_to_e4m3(-0.0f), 0x80);
  EXPECT_EQ(float_to_e4m3(0x1p-10f), 0);  // a tie, to even
  EXPECT_EQ(float_to_e4m3(0x1.8p-10f), 1);
  EXPECT_EQ(float_to_e5m2(1.0f), 0x3C);
  EXPECT_EQ(float_to_e5m2(57344.0f), 0x7B);
  EXPECT_TRUE(std::isinf(e5m2_to_float(0xFC)));
}

TEST(Float4, TiesGoToEven) {
  const float ties[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f},
              expected[] = {0.0f, 1.0f, 1.0f, 2.0f, 2.0f, 4.0f, 4.0f};
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(e2m1_to_float(float_to_e2m1(ties[i])), expected[i]) << ties[i];
    EXPECT_EQ(e2m1_to_float(float_to_e2m1(-ties[i])), -expected[i]) << ties[i];
  }
}

TEST(Float4, TheFirstOfTwoIsTheLowHalf) {
  std::uint8_t bytes[2] = {};
  for (int i = 0; i < 4; ++i) set_e2m1(bytes, i, static_cast<std::uint8_t>(i + 1));
  EXPECT_EQ(bytes[0], 0x21);
  EXPECT_EQ(bytes[1], 0x43);
  set_e2m1(bytes, 1, 15);
  EXPECT_EQ(bytes[0], 0xF1);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(e2m1_at(bytes, i), i == 1 ? 15 : i + 1);
}

}  // namespace
}  // namespace tilewise::device
