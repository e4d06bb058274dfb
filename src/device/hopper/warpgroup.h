// What warpgroups of a block do together: named barriers, and registers handed from one to another.
#pragma once

#include "device/tile/platform.h"

namespace tilewise::device {

inline constexpr int kWarpgroupThreads = 128;

/// A hardware barrier by number; 0 is the whole block's. `threads`: those that wait and those that only arrive.
TILEWISE_INLINE void named_barrier_sync(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
TILEWISE_INLINE void named_barrier_arrive(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/// Waits for registers that another warpgroup gives up.
template <int kRegisters>
TILEWISE_INLINE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
TILEWISE_INLINE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace tilewise::device
