// Accumulators of a Hopper machine's products: a warp's share of wgmma's lies in its registers as mma.sync's does.
#pragma once

#include "device/tile/fragment.h"
#include "device/tile/registers.h"

namespace tilewise::device {

template <class Machine_>
struct Sm90Ops {
  using Machine = Machine_;
  using FragmentLayout = Sm80FragmentLayout;
  using Accumulator = Sm80Accumulator;
};

}  // namespace tilewise::device
