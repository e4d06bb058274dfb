// Tensor maps of an expert layer's kernels.
#pragma once

#include <cstdint>

#include "backends/cuda/hopper/moe_kernels.hpp"
#include "gpu/lowering.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::backends::hopper {

/// Adds a launch's maps: of weights and, of a layer's kernel, of rows in the workspace.
void add_moe_maps(const device::MoeDecodeConfig& config, DType row_dtype, gpu::Launch& launch);
void add_moe_maps(const device::MoeLayerConfig& config, DType dtype, gpu::Launch& launch);
/// Likewise of the backward pass: rows in the workspace, weights, and their gradients.
void add_moe_maps(MoeProductOf of, const device::GemmConfig& config, DType dtype, gpu::Launch& launch);
void add_moe_maps(const device::MoeSlopesConfig& config, DType dtype, gpu::Launch& launch);
void add_moe_maps(bool of_down, const device::MoeDwConfig& config, DType dtype, gpu::Launch& launch);

void add_moe_maps(const device::MoeScaledConfig& config, gpu::Launch& launch);

}  // namespace tilewise::backends::hopper
