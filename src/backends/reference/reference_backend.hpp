// The reference backend's row of the dispatch table: docs/semantics.md in code, every
// feature, double accumulation, no cleverness. Every other implementation is checked against it.
#pragma once

#include "core/implementation.hpp"
#include "core/visibility.hpp"
#include "device/common/params.h"
#include "tilewise/problem.hpp"

namespace tilewise::backends {

/// "reference". Accepts every valid problem on the CPU, at an estimate above that of whatever is faster.
[[nodiscard]] TILEWISE_INTERNAL const core::Implementation& reference_implementation();

/// Throws Error where a look-up of score_mod or mask_mod, done as the reference does it, is out of range.
void check_look_ups(const device::AttentionParams& params, const Problem& problem);

}  // namespace tilewise::backends
