// The CPU's rows of the dispatch table for experts, one for each instruction set.
#pragma once

#include <span>

#include "core/implementation.hpp"

namespace tilewise::backends {

/// "cpu.amx_bf16", ...: as the instruction sets of cpu_implementations(), best first.
[[nodiscard]] std::span<const core::Implementation* const> cpu_moe_implementations();

}  // namespace tilewise::backends
