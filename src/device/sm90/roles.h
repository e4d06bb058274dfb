// Warp roles: the first warpgroup of a block produces, the others consume, each kind with registers of its own.
#pragma once

#include "device/sm90/warpgroup.h"

namespace tilewise::device {

/// How many registers a thread of each role has.
struct RoleRegisters {
  int producer, consumer;
};

/// The usual numbers for one producer warpgroup and `consumers` others, where a block has all 65,536 registers of a
/// multiprocessor.
constexpr RoleRegisters role_registers(int consumers) {
  return consumers == 1   ? RoleRegisters{128, 256 - 8}
         : consumers == 2 ? RoleRegisters{40, 232}
                          : RoleRegisters{32, 160};
}

/// Calls produce(warp) in the warps of the first warpgroup and consume(warpgroup) in the others, counted from 0.
/// Lambdas are marked TILEWISE_INLINE_LAMBDA. Code behind it can rely on the registers of neither role.
template <class Machine, int kConsumers, RoleRegisters kRegisters = role_registers(kConsumers), class Produce,
          class Consume>
TILEWISE_INLINE void run_roles(const Produce& produce, const Consume& consume) {
  if (static_cast<uint32_t>(Machine::thread()) < kWarpgroupThreads) {
    Machine::template dealloc_registers<kRegisters.producer>();
    produce(Machine::thread() / 32);
  } else {
    Machine::template alloc_registers<kRegisters.consumer>();
    consume(uniform<Machine>(Machine::thread() / kWarpgroupThreads - 1));
  }
}

/// Makes barriers that a thread has initialised known to the block, or to all blocks of its cluster.
template <class Machine, int kBlocks>
TILEWISE_INLINE void meet_cluster() {
  if constexpr (kBlocks == 1) {
    Machine::barrier();
  } else {
    Machine::arrive_at_cluster();
    Machine::wait_for_cluster();
  }
}

/// Ends a kernel: no block of the cluster ends before all arrivals at its barriers have come.
template <class Machine, int kBlocks>
TILEWISE_INLINE void leave_cluster() {
  if constexpr (kBlocks > 1) meet_cluster<Machine, kBlocks>();
}

template <class Machine, class... Maps>
TILEWISE_INLINE void prefetch_maps(const Maps&... maps) {
  (Machine::prefetch_map(maps), ...);
}

/// A kernel of roles from its beginning to its end, of kBlocks blocks a cluster. prepare() makes barriers, in one
/// thread. They stand in all blocks once roles begin, and so does what the step before has written.
template <class Machine, int kConsumers, int kBlocks, class Prepare, class Produce, class Consume>
TILEWISE_INLINE void run_kernel(const Prepare& prepare, const Produce& produce, const Consume& consume) {
  if (Machine::thread() == 0) {
    prepare();
    Machine::publish_barriers();
  }
  meet_cluster<Machine, kBlocks>();
  let_next_step_begin<Machine>();
  wait_for_step_before<Machine>();
  run_roles<Machine, kConsumers>(produce, consume);
  leave_cluster<Machine, kBlocks>();
}

}  // namespace tilewise::device
