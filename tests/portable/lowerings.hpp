// What the portable kernels launch for problems of any operation.
#pragma once

#include <string_view>
#include <vector>

#include "core/implementation.hpp"
#include "gpu/ahead_of_time.hpp"
#include "gpu/lowered_kernel.hpp"
#include "support.hpp"

namespace tilewise::backends::portable {

/// What they launch for a problem: the rows that compile ahead of time for the family
/// that the architecture shares with others.
inline std::vector<gpu::Lowering> lowerings_of(std::string_view architecture, std::string_view text) {
  const core::DeviceDescription device = device_of(architecture);
  const AnyProblem problem = parse_problem(core::concat(text, " device=", to_string(device.device.type)));
  std::vector<gpu::Lowering> lowerings;
  for (const core::Implementation* row : core::implementation_table()) {
    const auto* kernels = dynamic_cast<const gpu::AheadOfTime*>(row);
    if (kernels == nullptr || kernels->family() != family_of(architecture)) continue;
    if (&row->operation() != &problem.operation() || row->device() != problem.device()) continue;
    const core::FeatureBits required = problem.operation().required_features(problem.value());
    if ((required & ~row->supported_features()) != 0) continue;
    const core::Verdict verdict = row->judge_problem(problem, device);
    if (!verdict.accepted()) continue;
    lowerings.push_back(dynamic_cast<const gpu::LoweredKernel&>(*verdict.kernel).lowering());
  }
  EXPECT_FALSE(lowerings.empty()) << architecture << " has nothing for " << text;
  return lowerings;
}

}  // namespace tilewise::backends::portable
