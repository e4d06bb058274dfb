// Whole expert layers on the CPU.
#pragma once

#include <cstddef>

#include "backends/cpu/gemm/gemm_kernels.hpp"
#include "operations/moe/params.hpp"

namespace tilewise::backends::cpu {

/// By shapes alone. Tokens are taken in chunks, so that it does not grow with them beyond about 256 MiB, or what one
/// token needs.
[[nodiscard]] std::size_t moe_workspace_size(const operations::moe::MoeParams& p);

/// x is f32, bf16, f16, f64 or fp8_e4m3, weights have its dtype or are quantised, and `kernels` multiply them; x and
/// out have a contiguous last dimension, and each weight one of its last two. Throws Error where they don't.
void run_moe(const operations::moe::MoeParams& p, const GemmKernels& kernels, void* workspace);

/// By shapes and dtypes alone: of each (token, j) the intermediate values and the gradients of what makes them, in the
/// dtype of x (f32 of f16), and up to 256 MiB beside them.
[[nodiscard]] std::size_t moe_backward_workspace_size(const operations::moe::MoeParams& p);

/// Writes those of dx, dtopk_weights and the gradients of weights and biases that are given; quantised weights have no
/// gradient, and x is not quantised. Tensors lie as in run_moe(), gradients as what they are of may. Throws Error where
/// they don't.
void run_moe_backward(const operations::moe::MoeParams& p, const GemmKernels& kernels, void* workspace);

}  // namespace tilewise::backends::cpu
