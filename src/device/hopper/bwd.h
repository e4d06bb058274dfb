// The Hopper backward kernel: a block for each tile of 128 keys, of which two warpgroups compute dk and dv, 64 keys
// each, and a third adds up dq and brings tiles of queries by TMA.
#pragma once

#include "device/hopper/bwd_dq.h"
#include "device/hopper/bwd_main.h"
#include "device/hopper/contract.h"

namespace tilewise::device {

template <Sm90TileOps Ops, HopperBwdConfig C>
class HopperBwd {
  using Machine = typename Ops::Machine;

 public:
  using Params = HopperBwdParams;
  using Shared = HopperBwdShared<Machine, C>;

  TILEWISE_INLINE static void run(const HopperBwdParams& params, Shared& shared) {
    if (Machine::thread() == 0) {
      shared.init_barriers();
      Machine::prefetch_map(params.k_map), Machine::prefetch_map(params.v_map);
      Machine::prefetch_map(params.q_map), Machine::prefetch_map(params.dout_map);
    }
    Machine::barrier();
    const BwdWork work = find_work<C>(params, Machine::block());
    if (work.rows <= 0) return;  // the sequence has no such keys
    // By way of a shuffle: else the compiler reads the special register anew in every step, which takes 50 to 150
    // cycles while shared memory is busy.
    const auto thread = static_cast<int>(Machine::shuffle_xor(static_cast<uint32_t>(Machine::thread()), 0));
    constexpr RegisterShares kShares = register_shares(C);
    if (static_cast<uint32_t>(Machine::thread()) < kWarpgroupThreads) {
      Machine::template give_registers<kShares.producer>();
      BwdDqSums<Ops, C>(params, shared, work, thread).run();
    } else {
      Machine::template take_registers<kShares.consumer>();
      BwdMain<Ops, C>(params, shared, work, thread).run();
    }
  }
};

}  // namespace tilewise::device
