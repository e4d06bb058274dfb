// Linear and grouped linear layers on the CPU.
#pragma once

#include <cstddef>

#include "backends/cpu/gemm/gemm_kernels.hpp"
#include "operations/linear/params.hpp"

namespace tilewise::backends::cpu {

/// By shapes alone.
[[nodiscard]] std::size_t linear_workspace_size(const operations::linear::LinearParams& p);

/// x is f32, bf16, f16, f64 or fp8_e4m3, w has its dtype or is quantised, and `kernels` multiply the two; x and out
/// have a contiguous last dimension, and w one of its last two. Throws Error where they don't.
void run_linear(const operations::linear::LinearParams& p, const GemmKernels& kernels, void* workspace);

/// By shapes and dtypes alone: the gradient of what the activation is given, where it is not dout itself.
[[nodiscard]] std::size_t linear_backward_workspace_size(const operations::linear::LinearParams& p);

/// Writes those of dx, dw and dbias that are given; quantised weights have no gradient, and x is not quantised. Tensors
/// lie as in run_linear(), gradients as what they are of may. Throws Error where they don't.
void run_linear_backward(const operations::linear::LinearParams& p, const GemmKernels& kernels, void* workspace);

}  // namespace tilewise::backends::cpu
