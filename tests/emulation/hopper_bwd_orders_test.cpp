// Configs of Hopper's backward kernel that combine what others have one by one: right in any order of its warps. Each
// takes seconds to compile and to run, so they are a nightly run's.
#include "hopper_bwd_call.hpp"

namespace tilewise::test {
namespace {

TEST(EmulatedHopperBwdNightly, IsRightInAnyOrder) {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    expect_right<kFinishingWindow, kBothWaysWindow, kWideCounting, kOwnDqBothWays, kWideRounding, kGroupedCounting,
                 kWideGrouped>(seed);
  }
}

}  // namespace
}  // namespace tilewise::test
