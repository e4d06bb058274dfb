// The CUDA backend: portable kernels on NVIDIA GPUs of compute capability 8.0 and newer.
#pragma once

#include <span>

#include "core/device.hpp"
#include "core/implementation.hpp"
#include "gpu/runtime.hpp"

namespace tilewise::backends {

/// "cuda.hopper" and "cuda.sm80".
[[nodiscard]] std::span<const core::Implementation* const> cuda_implementations();
[[nodiscard]] const core::DeviceSystem& cuda_system();
/// The device of that index, opened on first use. Throws Error(runtime) where there is none.
[[nodiscard]] const gpu::Runtime& cuda_runtime(int index);

}  // namespace tilewise::backends
