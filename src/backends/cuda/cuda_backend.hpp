// The CUDA backend: portable kernels on NVIDIA GPUs of compute capability 8.0 and newer.
#pragma once

#include <span>

#include "backends/portable/gpu_implementation.hpp"
#include "core/device.hpp"
#include "core/implementation.hpp"

namespace tilewise::backends {

/// "cuda.sm80".
[[nodiscard]] std::span<const core::Implementation* const> cuda_implementations();
[[nodiscard]] const core::DeviceSystem& cuda_system();
/// The device of that index, opened on first use.
[[nodiscard]] portable::GpuStatus cuda_status(int index);

}  // namespace tilewise::backends
