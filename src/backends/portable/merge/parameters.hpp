// What each pointer in the parameter blocks of merge's kernels points to: the one table that workspaces, the
// emulation's memory checks and launch.json go by.
#pragma once

#include "device/merge/params.h"
#include "gpu/parameters.hpp"

namespace tilewise::backends::portable {

void for_each_pointer(const device::MergeForwardParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::MergeBwdPreprocessParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::MergeBwdParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::MergeBwdDsinkParams& p, const gpu::RegionVisitor& visit);

}  // namespace tilewise::backends::portable
