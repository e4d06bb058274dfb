// A launch that clears rows of packed results which belong to no sequence.
#pragma once

#include "backends/portable/traits.hpp"
#include "gpu/lowering.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::portable {

/// What it takes beside others, in microseconds: it finds nothing to do, as a rule.
inline constexpr double kClearRestUs = 2.0;

/// If the problem asks for it. True if there is such a launch.
bool add_clear_rest(const AttentionProblem& problem, const DeviceTraits& traits, gpu::LoweringBuilder& builder);

}  // namespace tilewise::backends::portable
