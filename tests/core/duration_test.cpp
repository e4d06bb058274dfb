// Times as explain() and the log of decisions print them.
#include "core/duration.hpp"

#include <gtest/gtest.h>

namespace tilewise::core {
namespace {

TEST(Duration, TakesTheUnitThatKeepsItShort) {
  EXPECT_EQ(duration_text(0.0), "0.00 us");
  EXPECT_EQ(duration_text(0.5), "0.50 us");
  EXPECT_EQ(duration_text(12.34), "12.3 us");
  EXPECT_EQ(duration_text(123.4), "123 us");
  EXPECT_EQ(duration_text(999.4), "999 us");
  EXPECT_EQ(duration_text(1234.0), "1.23 ms");
  EXPECT_EQ(duration_text(56789.0), "56.8 ms");
  EXPECT_EQ(duration_text(1.2e6), "1.20 s");
  EXPECT_EQ(duration_text(90e6), "1.50 min");
  EXPECT_EQ(duration_text(3 * 3600e6), "3.00 h");
  EXPECT_EQ(duration_text(50 * 3600e6), "2.08 days");
  EXPECT_EQ(duration_text(1e15), "11574 days");
  EXPECT_EQ(duration_text(1e24), "1.16e+13 days");
}

TEST(Duration, RoundsUpIntoTheNextUnit) {
  EXPECT_EQ(duration_text(9.996), "10.0 us");
  EXPECT_EQ(duration_text(99.96), "100 us");
  EXPECT_EQ(duration_text(999.6), "1.00 ms");
  EXPECT_EQ(duration_text(999.9e3), "1.00 s");
}

}  // namespace
}  // namespace tilewise::core
