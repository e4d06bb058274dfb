// What tests know of emulated machines, and on which of them a suite runs: those of a test run, by night the others,
// too.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace tilewise {

/// Of emulations that are RDNA's but for matrix instructions: tests/emulation/rdna4_test.cpp has what is their own.
[[nodiscard]] inline bool differs_in_products_alone(std::string_view row) {
  return row == "emulation.rdna4" || row == "emulation.gfx1250";
}

/// "sm80" of "emulation.sm80".
[[nodiscard]] inline std::string machine_of(const testing::TestParamInfo<std::string>& info) {
  return info.param.substr(info.param.find('.') + 1);
}

}  // namespace tilewise

// Machines share most of a kernel's source: suites differ in the machine that a test run takes, so that each has some.
// What has "ByNight" in its name is left to `make nightly`, see tilewise_add_test.
#define TILEWISE_ON_MACHINES(suite, ...) \
  INSTANTIATE_TEST_SUITE_P(Machines, suite, testing::Values(__VA_ARGS__), ::tilewise::machine_of)
#define TILEWISE_ON_MACHINES_BY_NIGHT(suite, ...) \
  INSTANTIATE_TEST_SUITE_P(MachinesByNight, suite, testing::Values(__VA_ARGS__), ::tilewise::machine_of)
