// What each pointer in the parameter blocks of the Hopper kernels points to. What tensor maps hold is no pointer of the
// block.
#pragma once

#include "backends/portable/attention/parameters.hpp"
#include "device/hopper/params.h"

namespace tilewise::backends::hopper {

void for_each_pointer(const device::HopperMaskTilesParams& params, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::HopperTileListsParams& params, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::HopperForwardParams& params, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::HopperBwdPreprocessParams& params, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::HopperBwdParams& params, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::HopperBwdConvertDqParams& params, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::HopperLatentParams& params, const gpu::RegionVisitor& visit);

}  // namespace tilewise::backends::hopper
