// Tensor maps of an expert layer's kernels.
#pragma once

#include <cstdint>

#include "device/moe/sm90/config.h"
#include "gpu/lowering.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::backends::hopper {

/// Adds a launch's maps: of weights and, of a layer's kernel, of rows in the workspace.
void add_moe_maps(const device::MoeDecodeConfig& config, DType row_dtype, gpu::Launch& launch);
void add_moe_maps(const device::MoeLayerConfig& config, DType dtype, gpu::Launch& launch);

}  // namespace tilewise::backends::hopper
