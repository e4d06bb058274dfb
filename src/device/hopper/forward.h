// The Hopper forward kernel: a persistent block per multiprocessor, one warpgroup that brings tiles by TMA and others
// that multiply them by wgmma.
#pragma once

#include "device/hopper/forward_consumer.h"
#include "device/hopper/forward_producer.h"

namespace tilewise::device {

template <class Ops, HopperForwardConfig C>
class HopperForward {
  static_assert(IsSame<Ops, HopperOps>::value, "no other machine has its instructions");

 public:
  using Params = HopperForwardParams;
  using Shared = HopperForwardShared<C>;

  TILEWISE_INLINE static void run(const HopperForwardParams& params, Shared& shared) {
    if (threadIdx.x == 0) {
      shared.init_barriers();
      tma_prefetch(params.q_map), tma_prefetch(params.k_map), tma_prefetch(params.v_map), tma_prefetch(params.out_map);
    }
    __syncthreads();
    constexpr RegisterShares kShares = register_shares(C);
    if (threadIdx.x < kWarpgroupThreads) {
      give_registers<kShares.producer>();
      ForwardProducer<C> producer(params, shared);
      if (threadIdx.x == 0) producer.bring_queries_and_keys();
      if (threadIdx.x / 32 == 1) producer.bring_values();
    } else {
      take_registers<kShares.consumer>();
      ForwardConsumer<C>(params, shared).run();
    }
  }
};

}  // namespace tilewise::device
