// The Hopper forward kernel: a persistent block per multiprocessor, one warpgroup that loads tiles by TMA and others
// that multiply them by wgmma.
#pragma once

#include "device/hopper/forward_consumer.h"
#include "device/hopper/forward_producer.h"
#include "device/hopper/forward_transposer.h"
#include "device/sm90/contract.h"

namespace tilewise::device {

template <Sm90TileOps Ops, auto C>
class HopperForward {
  using Machine = typename Ops::Machine;

 public:
  using Params = ForwardParamsOf<C>;
  using Shared = HopperForwardShared<Machine, C>;

  TILEWISE_INLINE static void run(const Params& params, Shared& shared) {
    if (Machine::thread() == 0) {
      shared.init_barriers();
      Machine::prefetch_map(params.q_map), Machine::prefetch_map(params.k_map);
      Machine::prefetch_map(params.v_map), Machine::prefetch_map(params.out_map);
      if constexpr (C.bias_boxes) Machine::prefetch_map(params.bias_map);
    }
    if constexpr (C.clustered) Machine::arrive_at_cluster(), Machine::wait_for_cluster();
    if constexpr (!C.clustered) Machine::barrier();
    if constexpr (C.cached) wait_for_step_before<Machine>();  // new keys are appended by it
    constexpr WarpgroupRegisters kRegisters = warpgroup_registers(C);
    if (static_cast<uint32_t>(Machine::thread()) < kWarpgroupThreads) {
      Machine::template dealloc_registers<kRegisters.producer>();
      const int32_t warp = Machine::thread() / 32;
      if constexpr (C.fp8()) {
        if (warp >= 1) return ValueTransposer<Machine, C>(params, shared, warp - 1).run();
      }
      ForwardProducer<Machine, C> producer(params, shared);
      if (Machine::thread() == 0) producer.load_queries_and_keys();
      if (warp == 1) producer.load_values();
      if constexpr (C.page_size != 0) {
        if (warp == 2) producer.load_paged_keys();
      }
      if constexpr (C.shares_draws()) {
        if (warp == 2) producer.load_draws();
      }
    } else {
      Machine::template alloc_registers<kRegisters.consumer>();
      ForwardConsumer<Ops, C>(params, shared).run();
    }
    // The other block's warps hand stages back to this one until they have read the last tile.
    if constexpr (C.clustered) Machine::arrive_at_cluster(), Machine::wait_for_cluster();
  }
};

}  // namespace tilewise::device
