// The launches that tell kernels which tiles mask_mod leaves.
#pragma once

#include <cstdint>

#include "backends/portable/attention/functions.hpp"
#include "backends/portable/attention/mask_tiles.hpp"
#include "backends/portable/traits.hpp"
#include "device/hopper/config.h"
#include "gpu/lowering.hpp"

namespace tilewise::backends::hopper {

/// The tiles of a kernel that skips some, and how its functions are asked.
struct SkippedTiles {
  device::HopperMaskTilesConfig config;
  portable::FunctionUse use;
  gpu::Bind bind;                     // of a block of mask_tiles with tables
  std::int64_t heads_of_kernel_head;  // query heads that the kernel works on as one
};

/// The tiles that Hopper's kernels can know of a problem's.
[[nodiscard]] portable::KnownTiles known_tiles(const Problem& problem);

/// mask_tiles with that config, and tile_lists behind it; nothing where no tile is known.
[[nodiscard]] portable::MaskTilesStep add_tile_lists(const Problem& problem, const portable::DeviceTraits& traits,
                                                     const SkippedTiles& tiles, gpu::LoweringBuilder& builder);

/// For calls of attention.
void bind_mask_tiles(const void* call, void* block);

}  // namespace tilewise::backends::hopper
