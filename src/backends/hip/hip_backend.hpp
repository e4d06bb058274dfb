// The HIP backend: portable kernels on AMD GPUs, with MFMA (CDNA) and WMMA (RDNA 3).
#pragma once

#include <span>

#include "core/device.hpp"
#include "core/implementation.hpp"
#include "gpu/runtime.hpp"

namespace tilewise::backends {

/// "hip.cdna", "hip.rdna", "hip.rdna4" and "hip.gfx1250".
[[nodiscard]] std::span<const core::Implementation* const> hip_implementations();
[[nodiscard]] const core::DeviceSystem& hip_system();
/// The device of that index, opened on first use. Throws Error(runtime) where there is none.
[[nodiscard]] const gpu::Runtime& hip_runtime(int index);

}  // namespace tilewise::backends
