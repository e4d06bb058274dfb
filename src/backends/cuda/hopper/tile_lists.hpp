// The launches that tell kernels which tiles mask_mod leaves.
#pragma once

#include "backends/portable/attention/mask_tiles.hpp"

namespace tilewise::backends::hopper {

/// mask_tiles with that config, and tile_lists behind it; nothing where no tile is known.
[[nodiscard]] portable::MaskTilesStep add_tile_lists(const Problem& problem, const portable::DeviceTraits& traits,
                                                     const device::MaskTilesConfig& config,
                                                     gpu::LoweringBuilder& builder);

}  // namespace tilewise::backends::hopper
