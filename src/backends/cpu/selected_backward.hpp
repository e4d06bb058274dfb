// The backward pass over selected keys: one query of one key head at a time, whose keys are brought together. dk and dv
// of every key are summed in the kernels' Reals, in the order of the queries.
#pragma once

#include <memory>

#include "backends/cpu/kernels.hpp"
#include "core/implementation.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::cpu {

/// Of f64, and of other dtypes through f32: `kernels` must have it. Without dbias and dtables.
[[nodiscard]] std::unique_ptr<core::Kernel> make_selected_backward_kernel(const Problem& problem,
                                                                          const KernelSet& kernels);

}  // namespace tilewise::backends::cpu
