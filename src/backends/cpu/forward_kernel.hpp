// The forward pass on the CPU: which rows make a tile and which tiles there are. Few rows a key
// head are decode_kernel.hpp's. The arithmetic is isa/'s.
#pragma once

#include <memory>

#include "backends/cpu/kernels.hpp"
#include "operations/attention/attention.hpp"

namespace tilewise::backends::cpu {

[[nodiscard]] std::unique_ptr<core::Kernel> make_forward_kernel(const Problem& problem, const KernelSet& kernels);

}  // namespace tilewise::backends::cpu
