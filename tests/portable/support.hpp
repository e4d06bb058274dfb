// Problems as text, lowered for named architectures.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "backends/portable/attention/lowering.hpp"
#include "backends/portable/attention/schedule.hpp"
#include "core/message.hpp"
#include "gpu/architectures.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::portable {

inline core::DeviceDescription device_of(std::string_view architecture) {
  return gpu::describe(gpu::named_architecture(architecture));
}
inline Family family_of(std::string_view architecture) { return gpu::named_architecture(architecture).family; }
inline DeviceTraits traits_of(std::string_view architecture) {
  return traits_of(device_of(architecture), family_of(architecture));
}

/// A problem of the architecture's kind of device.
inline Problem problem_for(std::string_view architecture, std::string_view text) {
  return parse_problem(core::concat(text, " device=", to_string(device_of(architecture).device.type)));
}

inline Outcome outcome(std::string_view architecture, const Problem& problem) {
  return lower(problem, device_of(architecture), family_of(architecture));
}

/// Lowers what must not be refused.
inline gpu::Lowering lowered(std::string_view architecture, std::string_view text) {
  const Problem problem = problem_for(architecture, text);
  Outcome lowered = outcome(architecture, problem);
  EXPECT_EQ(lowered.refusal, "") << architecture << ": " << to_string(problem);
  return std::move(lowered.lowering);
}

/// Those of a call on contiguous tensors.
[[nodiscard]] inline device::AttentionParams contiguous_params(const Problem& problem) {
  return *static_cast<const device::AttentionParams*>(contiguous_call(problem).params.get());
}

/// The parameter block of a launch, which must be of this kernel, as far as the problem decides it.
template <typename Kernel>
[[nodiscard]] typename Kernel::Params params_of(const gpu::Launch& launch) {
  EXPECT_TRUE(gpu::is_kernel<Kernel>(launch.key)) << launch.key.body->name;
  typename Kernel::Params params;
  std::memcpy(&params, launch.params.data(), sizeof params);
  return params;
}

/// Null where the lowering has no launch of the kernel.
template <typename Kernel>
[[nodiscard]] const gpu::Launch* find_launch(const gpu::Lowering& lowering) {
  for (const gpu::Launch* launch : lowering.launches()) {
    if (gpu::is_kernel<Kernel>(launch->key)) return launch;
  }
  return nullptr;
}

/// Of its kernels, in order, with a blank behind each.
[[nodiscard]] inline std::string names_of(const gpu::Lowering& lowering) {
  std::string text;
  for (const gpu::Launch* launch : lowering.launches()) text += core::concat(launch->key.body->name, " ");
  return text;
}

/// One of each: every family of machines, and what differs within.
inline constexpr std::string_view kArchitectures[] = {"sm_80",  "sm_86",   "sm_89",   "sm_90a",  "gfx90a",  "gfx942",
                                                      "gfx950", "gfx1100", "gfx1102", "gfx1151", "gfx1201", "gfx1250"};

/// One architecture of each machine.
inline constexpr std::string_view kMachines[] = {"sm_90a", "gfx942", "gfx1100"};

}  // namespace tilewise::backends::portable
