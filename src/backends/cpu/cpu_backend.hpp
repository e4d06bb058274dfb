// The CPU backend's rows of the dispatch table: one per instruction set.
#pragma once

#include <span>

#include "core/implementation.hpp"
#include "device/common/params.h"
#include "tilewise/problem.hpp"

namespace tilewise::backends {

/// Throws Error where a look-up of a call is out of range.
using LookUpCheck = void (*)(const device::AttentionParams& params, const Problem& problem);

/// cpu.amx_bf16, cpu.avx512_bf16, cpu.avx512, cpu.avx2, cpu.generic. `check` is asked where TILEWISE_CHECK=1 asks.
[[nodiscard]] std::span<const core::Implementation* const> cpu_implementations(LookUpCheck check);
/// See core::describe_cpu().
[[nodiscard]] core::DeviceDescription describe_cpu();

}  // namespace tilewise::backends
