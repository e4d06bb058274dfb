// The Hopper kernel of MLA's decoding: a block has 64 (query, head) pairs and a part of their sequence's keys, of which
// a warpgroup loads tiles and two others multiply them, as keys and as values from one copy.
#pragma once

#include "device/hopper/latent_consumer.h"
#include "device/hopper/latent_producer.h"
#include "device/sm90/contract.h"
#include "device/sm90/roles.h"

namespace tilewise::device {

template <Sm90TileOps Ops, HopperLatentConfig C>
class HopperLatent {
  using Machine = typename Ops::Machine;

 public:
  using Params = HopperLatentParams;
  using Shared = HopperLatentShared<Machine, C>;

  TILEWISE_INLINE static void run(const HopperLatentParams& params, Shared& shared) {
    if (Machine::thread() == 0) {
      shared.init_barriers();
      prefetch_maps<Machine>(params.q_map, params.k_map);
    }
    if constexpr (C.clustered) Machine::arrive_at_cluster();
    if constexpr (!C.clustered) Machine::barrier();
    if constexpr (C.split) let_next_step_begin<Machine>();
    wait_for_step_before<Machine>();  // new keys are appended by it
    const LatentWork work = latent_work<Machine, C>(params);
    if constexpr (C.clustered) Machine::wait_for_cluster();  // the barriers of both stand
    // Of a packed sequence with fewer queries, or a place without a part; both blocks of a cluster alike.
    if (work.first_query >= work.all_q) return;
    run_roles<Machine, C.kConsumers>(
        [&](int) TILEWISE_INLINE_LAMBDA {
          LatentProducer<Machine, C>(params, shared, work).run();
          if constexpr (C.clustered) Machine::arrive_at_cluster();
        },
        [&](int32_t warpgroup)
            TILEWISE_INLINE_LAMBDA { LatentConsumer<Ops, C>(params, shared, work, warpgroup).run(); });
    if constexpr (C.clustered) Machine::wait_for_cluster();  // the other's warps hand stages back to this block
  }
};

}  // namespace tilewise::device
