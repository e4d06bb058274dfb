// What the tests of paths through Hopper's kernels share: a problem by the emulated machine, held against the
// reference.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "../support/expect_passed.hpp"
#include "tilewise/attention.hpp"
#include "verify/verify.hpp"

namespace tilewise::test {

inline constexpr std::string_view kHopper = "emulation.sm90";

/// Runs a problem whose schedule names `path`.
inline void check(std::string_view path, const std::string& text, bool special = false,
                  const std::string& operation = "attention_forward ") {
  const Problem problem = parse_problem(operation + text);
  const std::string schedule = plan(problem, {std::string(kHopper)}).schedule();
  EXPECT_NE(schedule.find(path), std::string::npos) << "another path: " << schedule << "\n  " << text;
  expect_passed(problem, kHopper, aligned_seed(special));
}

inline const std::string kGroups = " num_heads_q=4 num_heads_k=2", kLengths = " batch_size=2 seqlen_q=200 seqlen_k=330";

}  // namespace tilewise::test
