// Warp roles: the first warpgroup of a block produces, the others consume, each kind with registers of its own.
#pragma once

#include "device/sm90/warpgroup.h"

namespace tilewise::device {

/// Registers of a thread of each role.
struct RoleRegisters {
  int producer, consumer;
};

/// What is usual for one producer warpgroup and so many consumers, of the 65,536 of a multiprocessor that one block
/// has.
constexpr RoleRegisters role_registers(int consumers) {
  return consumers == 1   ? RoleRegisters{128, 256 - 8}
         : consumers == 2 ? RoleRegisters{40, 232}
                          : RoleRegisters{32, 160};
}

/// produce(warp) in the warps of the first warpgroup, consume(warpgroup) in the others, counted from 0. Lambdas are
/// marked TILEWISE_INLINE_LAMBDA. What follows in the kernel has the registers of neither for granted.
template <class Machine, int kConsumers, class Produce, class Consume>
TILEWISE_INLINE void run_roles(const Produce& produce, const Consume& consume) {
  constexpr RoleRegisters kRegisters = role_registers(kConsumers);
  if (static_cast<uint32_t>(Machine::thread()) < kWarpgroupThreads) {
    Machine::template dealloc_registers<kRegisters.producer>();
    produce(Machine::thread() / 32);
  } else {
    Machine::template alloc_registers<kRegisters.consumer>();
    consume(uniform<Machine>(Machine::thread() / kWarpgroupThreads - 1));
  }
}

/// Once barriers have been initialised by a thread: all of the block, or of all blocks of its cluster, know of them.
template <class Machine, int kBlocks>
TILEWISE_INLINE void meet_cluster() {
  if constexpr (kBlocks == 1) {
    Machine::barrier();
  } else {
    Machine::arrive_at_cluster();
    Machine::wait_for_cluster();
  }
}

/// At the end of a kernel: others' arrivals at this block's barriers have come, and none of it ends before.
template <class Machine, int kBlocks>
TILEWISE_INLINE void leave_cluster() {
  if constexpr (kBlocks > 1) meet_cluster<Machine, kBlocks>();
}

}  // namespace tilewise::device
