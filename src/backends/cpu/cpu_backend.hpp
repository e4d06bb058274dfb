// The CPU backend's rows of the dispatch table: one per instruction set.
#pragma once

#include <span>

#include "core/implementation.hpp"

namespace tilewise::backends {

/// cpu.amx_bf16, cpu.avx512_bf16, cpu.avx512, cpu.avx2, cpu.generic.
[[nodiscard]] std::span<const core::Implementation* const> cpu_implementations();
/// See core::describe_cpu().
[[nodiscard]] core::DeviceDescription describe_cpu();

}  // namespace tilewise::backends
