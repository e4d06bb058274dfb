// A problem's results by an implementation, held against the reference's.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string_view>

#include "verify/verify.hpp"

namespace tilewise::test {

/// Rows that start on 16 bytes, as TMA wants them, so that all cases of a configuration share one kernel;
/// with NaN and infinities among the inputs, or none.
inline std::uint64_t aligned_seed(bool special) {
  std::uint64_t seed = 0;
  while (!verify::draws_aligned_rows(seed) || verify::draws_special_values(seed) != special) ++seed;
  return seed;
}

/// What fails names the command that repeats it.
inline void expect_passed(const AnyProblem& problem, std::string_view implementation, std::uint64_t seed) {
  const verify::Report report = verify::check_implementation(problem, implementation, seed);
  EXPECT_EQ(report.status, verify::Status::passed) << report.to_string();
}

}  // namespace tilewise::test
