// Problems as text, lowered for named architectures.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "backends/portable/architectures.hpp"
#include "core/message.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::portable {

inline DeviceTraits traits_of(std::string_view architecture) { return traits_of(named_architecture(architecture)); }

/// A problem of the architecture's kind of device.
inline Problem problem_for(std::string_view architecture, std::string_view text) {
  return parse_problem(core::concat(text, " device=", to_string(device_of(named_architecture(architecture)))));
}

/// Lowers what portable_refusal() must accept.
inline Lowering lowered(std::string_view architecture, std::string_view text) {
  const Problem problem = problem_for(architecture, text);
  const DeviceTraits traits = traits_of(architecture);
  EXPECT_EQ(portable_refusal(problem, traits), "") << architecture << ": " << to_string(problem);
  return lower(problem, traits);
}

/// One of each: every family of machines, and what differs within.
inline constexpr std::string_view kArchitectures[] = {"sm_80",  "sm_86",  "sm_89",   "sm_90a",  "gfx90a",
                                                      "gfx942", "gfx950", "gfx1100", "gfx1102", "gfx1151"};

/// One architecture of each machine.
inline constexpr std::string_view kMachines[] = {"sm_90a", "gfx942", "gfx1100"};

}  // namespace tilewise::backends::portable
