// The remainder of floats beside the standard library's.
#include "device/common/arithmetic.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace tilewise::device {
namespace {

void expect_same_remainder(float a, float b) {
  const float actual = float_remainder(a, b), expected = std::fmod(a, b);
  if (std::isnan(actual) && std::isnan(expected)) return;
  EXPECT_EQ(std::bit_cast<std::uint32_t>(actual), std::bit_cast<std::uint32_t>(expected)) << a << " by " << b;
}

TEST(Arithmetic, HasTheRemainderOfTheStandardLibrary) {
  std::mt19937 random(5);
  for (int i = 0; i < 300000; ++i) {
    auto a = static_cast<std::uint32_t>(random()), b = static_cast<std::uint32_t>(random());
    if (i % 3 == 0) b = (b & 0x807FFFFFu) | (a & 0x7F800000u);  // of like magnitude
    if (i % 7 == 0) a &= 0x80FFFFFFu;                           // small, or subnormal
    if (i % 5 == 0) b &= 0x807FFFFFu;                           // subnormal
    expect_same_remainder(std::bit_cast<float>(a), std::bit_cast<float>(b));
  }
  constexpr float kInfinite = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  for (const float a : {0.0F, -0.0F, 1.0F, -7.5F, 3.4e38F, 1e-45F, kInfinite, kNan}) {
    for (const float b : {0.0F, -0.0F, 1.0F, -2.5F, 3.4e38F, 1e-45F, kInfinite, -kInfinite, kNan}) {
      expect_same_remainder(a, b);
    }
  }
}

}  // namespace
}  // namespace tilewise::device
