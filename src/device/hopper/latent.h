// The Hopper kernel of MLA's decoding: a block has 64 (query, head) pairs and a part of their sequence's keys, of which
// a warpgroup loads tiles and two others multiply them, as keys and as values from one copy.
#pragma once

#include "device/hopper/latent_consumer.h"
#include "device/hopper/latent_producer.h"
#include "device/sm90/contract.h"

namespace tilewise::device {

template <Sm90TileOps Ops, HopperLatentConfig C>
class HopperLatent {
  using Machine = typename Ops::Machine;
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;

 public:
  using Params = HopperLatentParams;
  using Shared = HopperLatentShared<Machine, C>;

  TILEWISE_INLINE static void run(const HopperLatentParams& params, Shared& shared) {
    if (Machine::thread() == 0) {
      shared.init_barriers();
      Machine::prefetch_map(params.q_map), Machine::prefetch_map(params.k_map);
    }
    if constexpr (C.clustered) Machine::arrive_at_cluster();
    if constexpr (!C.clustered) Machine::barrier();
    if constexpr (C.split) let_next_step_begin<Machine>();
    wait_for_step_before<Machine>();  // new keys are appended by it
    const LatentWork work = latent_work<Machine, C>(params);
    if constexpr (C.clustered) Machine::wait_for_cluster();  // the barriers of both stand
    // Of a packed sequence with fewer queries, or a place without a part; both blocks of a cluster alike.
    if (work.first_query >= work.all_q) return;
    if (static_cast<uint32_t>(Machine::thread()) < kWarpgroupThreads) {
      Machine::template dealloc_registers<kProducerRegisters>();
      LatentProducer<Machine, C>(params, shared, work).run();
      if constexpr (C.clustered) Machine::arrive_at_cluster();
    } else {
      Machine::template alloc_registers<kConsumerRegisters>();
      LatentConsumer<Ops, C>(params, shared, work).run();
    }
    if constexpr (C.clustered) Machine::wait_for_cluster();  // the other's warps hand stages back to this block
  }
};

}  // namespace tilewise::device
