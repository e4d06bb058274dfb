// A launch that clears rows of packed results which belong to no sequence.
#pragma once

#include "backends/portable/traits.hpp"
#include "gpu/lowering.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::portable {

/// If the problem asks for it. Returns what it takes, in microseconds.
double add_clear_rest(const AttentionProblem& problem, const DeviceTraits& traits, gpu::LoweringBuilder& builder);

}  // namespace tilewise::backends::portable
