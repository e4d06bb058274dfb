// Look-ups that are checked before a call, where TILEWISE_CHECK=1 asks: kernels read 0 out of range and say nothing.
#pragma once

#include <memory>

#include "backends/cpu/cpu_backend.hpp"
#include "operations/attention/attention.hpp"

namespace tilewise::backends::cpu {

/// The kernel, or one that asks `check` first where the problem has captured tensors.
[[nodiscard]] std::unique_ptr<core::Kernel> checking_look_ups(std::unique_ptr<core::Kernel> kernel,
                                                              const Problem& problem, LookUpCheck check);

}  // namespace tilewise::backends::cpu
