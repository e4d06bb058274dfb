// The error function's polynomial beside the standard library's.
#include "device/common/error_function.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tilewise::device {
namespace {

TEST(ErrorFunction, IsWithinFourUnitsInTheLastPlace) {
  double worst = 0.0;
  for (float x = -12.0f; x < 9.3f; x += 1e-4f) {
    const double expected = std::erfc(double{x});
    const double unit = std::ldexp(1.0, std::max(std::ilogb(expected) - 23, -149));
    worst = std::max(worst, std::fabs(erfc_by_polynomial(x) - expected) / unit);
  }
  EXPECT_LT(worst, 4.0);
}

TEST(ErrorFunction, EndsWhereNumbersEnd) {
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  EXPECT_EQ(erfc_by_polynomial(kInfinite), 0.0f);
  EXPECT_EQ(erfc_by_polynomial(-kInfinite), 2.0f);
  EXPECT_EQ(erfc_by_polynomial(30.0f), 0.0f);
  EXPECT_EQ(erfc_by_polynomial(0.0f), 1.0f);
  EXPECT_TRUE(std::isnan(erfc_by_polynomial(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace tilewise::device
