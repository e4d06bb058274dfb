// What each pointer in the parameter blocks of the attention kernels points to: the one table that workspaces, the
// emulation's memory checks and launch.json go by.
#pragma once

#include "device/attention/params.h"
#include "gpu/parameters.hpp"

namespace tilewise::backends::portable {

using gpu::RegionVisitor;

void for_each_pointer(const device::ForwardParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::CombineParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::BwdPreprocessParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::BwdDqParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::BwdDkdvParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::BwdParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::BwdConvertDqParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::BwdConvertDkdvParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::BwdDbiasParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::BwdDsinkParams& p, const RegionVisitor& visit);
void for_each_pointer(const device::ClearRestParams& p, const RegionVisitor& visit);

}  // namespace tilewise::backends::portable
