// The backward pass on the CPU: key blocks to tasks, fp32 accumulators of dq, and their ends.
#pragma once

#include <memory>

#include "backends/cpu/kernels.hpp"
#include "operations/attention/attention.hpp"

namespace tilewise::backends::cpu {

[[nodiscard]] std::unique_ptr<core::Kernel> make_backward_kernel(const Problem& problem, const KernelSet& kernels);

}  // namespace tilewise::backends::cpu
