// Division by a multiplication: the same as the processor's.
#include "device/common/divisor.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace tilewise::device {
namespace {

constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();

void expect_quotients(std::int32_t d, std::mt19937& numbers) {
  const Divisor divisor = divisor_of(d);
  const auto expect = [&](std::int32_t n) { ASSERT_EQ(divide(n, divisor), n / d) << n << " / " << d; };
  expect(0);
  expect(kMost);
  for (int i = 0; i < 200; ++i) {
    const auto n = static_cast<std::int32_t>(numbers() >> 1);
    expect(n);
    // Multiples, and what lies just below them, are where a quotient that is a little off shows.
    expect(n / d * d);
    if (n >= d) expect(n / d * d - 1);
  }
}

TEST(Divisor, DividesAsTheProcessorDoes) {
  std::mt19937 numbers(17);
  for (std::int32_t d = 1; d <= 2048; ++d) expect_quotients(d, numbers);
  for (int log = 11; log < 31; ++log) {
    const std::int32_t power = std::int32_t{1} << log;
    for (const std::int32_t d : {power - 1, power, power + 1}) expect_quotients(d, numbers);
  }
  expect_quotients(kMost, numbers);
}

TEST(Divisor, OfAGridWithoutBlocksIsOne) { EXPECT_EQ(divide(7, divisor_of(0)), 7); }

}  // namespace
}  // namespace tilewise::device
