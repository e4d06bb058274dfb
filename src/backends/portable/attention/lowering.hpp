// From an attention problem to steps of portable kernels: which kernels, specialised on what, over which grid, with how
// much workspace. A pure function of the problem and the device's description.
#pragma once

#include "core/device_description.hpp"
#include "device/common/params.h"
#include "gpu/lowering.hpp"
#include "gpu/stand_ins.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::portable {

using gpu::Outcome;

[[nodiscard]] Outcome lower(const Problem& problem, const core::DeviceDescription& device, gpu::Family family);

/// What Tilewise passes for a call whose tensors are contiguous: everything but addresses, seed and offset.
[[nodiscard]] gpu::DescribedCall contiguous_call(const Problem& problem);

}  // namespace tilewise::backends::portable
