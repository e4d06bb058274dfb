// Gradients that sum over whole calls: dbias over its broadcast dimensions, dsink over rows.
#pragma once

#include <cstddef>

#include "backends/cpu/kernels.hpp"
#include "device/common/params.h"

namespace tilewise::backends::cpu {

/// Writes all of dbias. Each task owns a patch of it, recomputes the scores that reach the patch
/// and adds them in a fixed order: no atomics, no partial copies, reproducible always. It costs
/// two products more than reusing the main pass' scores, and only calls that want dbias pay.
void accumulate_dbias(const device::AttentionParams& p, const ScoreParams& score, const KernelSet& kernels,
                      ElementIndex element, std::size_t kernel_scratch, int workers);

/// Writes dsink: one task a head.
void accumulate_dsink(const device::AttentionParams& p, const KernelSet& kernels, ElementIndex element, int workers);

}  // namespace tilewise::backends::cpu
