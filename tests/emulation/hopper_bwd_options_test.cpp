// Hopper's backward kernel under sanitizers, where a config takes minutes: few that have each option between them. All
// others, and the planted faults, are the other build's.
#include "hopper_bwd_call.hpp"

namespace tilewise::test {
namespace {

TEST(EmulatedHopperBwd, IsRightWithEachOption) {
  expect_right<kSoftcap, kBiased, kWideDropout, kOrderedDropout, kBothWaysWindow, kCounting, kOwnDqFinishing,
               kOwnDqCounting, kGrouped, kLate, kWideLate>(0);
}

}  // namespace
}  // namespace tilewise::test
