// The launch that finds what mask_mod leaves of each tile, before a kernel that skips tiles by it.
#pragma once

#include "backends/portable/traits.hpp"
#include "device/attention/config.h"
#include "device/attention/params.h"
#include "gpu/lowering.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::portable {

/// What the kernel that skips is told, and how long the launch takes.
struct MaskTilesStep {
  device::TileClasses<const std::uint8_t> classes{};
  double estimated_us = 0.0;
};

/// Of a config with tiles of own rows and streamed ones; nothing where no tile is known (knows_tiles()).
[[nodiscard]] MaskTilesStep add_mask_tiles(const Problem& problem, const DeviceTraits& traits,
                                           const device::MaskTilesConfig& config, gpu::LoweringBuilder& builder);

}  // namespace tilewise::backends::portable
