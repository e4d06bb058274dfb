// The CPU's rows of the dispatch table for quantising, one for each instruction set that has kernels of formats.
#pragma once

#include <span>

#include "core/implementation.hpp"

namespace tilewise::backends {

/// "cpu.avx512", ...: best first.
[[nodiscard]] std::span<const core::Implementation* const> cpu_quantize_implementations();

}  // namespace tilewise::backends
