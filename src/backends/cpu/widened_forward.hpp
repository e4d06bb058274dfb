// The forward pass of q, k and v in fp8: they are widened to the dtype of out, exactly, and its kernels do the rest.
#pragma once

#include <memory>

#include "backends/cpu/kernels.hpp"
#include "operations/attention/attention.hpp"

namespace tilewise::backends::cpu {

/// The problem whose kernels compute one in fp8, in the dtype of its out.
[[nodiscard]] Problem widened(Problem problem);

/// What widening costs one core.
[[nodiscard]] double widening_us(const Problem& problem);

[[nodiscard]] std::unique_ptr<core::Kernel> make_widened_forward_kernel(const Problem& problem,
                                                                        const KernelSet& kernels);

}  // namespace tilewise::backends::cpu
