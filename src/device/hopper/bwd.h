// The Hopper backward kernel: a block for each tile of keys, or for each multiprocessor, which works on one tile of
// keys after the other. Of 128 keys two warpgroups compute dk and dv, 64 keys each, a third adds up dq and loads tiles
// of queries by TMA, and with dropout a fourth draws; where dq's sums have an order, a fourth loads tiles and takes
// these sums to memory. Of 128 keys of 192 and 128 columns the two multiply dq as well, and a third loads tiles. Of 64
// wide ones one computes dv, one dk, a third adds up dq, and a fourth loads tiles and draws.
#pragma once

#include "device/hopper/bwd_dq.h"
#include "device/hopper/bwd_draws.h"
#include "device/hopper/bwd_items.h"
#include "device/hopper/bwd_mainloop.h"
#include "device/hopper/bwd_own_courier.h"
#include "device/hopper/bwd_rounder.h"
#include "device/hopper/bwd_scheduler.h"
#include "device/hopper/bwd_wide.h"
#include "device/sm90/contract.h"

namespace tilewise::device {

template <Sm90TileOps Ops, auto C>
class HopperBwd {
  using Machine = typename Ops::Machine;

 public:
  using Params = BwdParamsOf<C>;
  using Shared = HopperBwdShared<Machine, C>;

  TILEWISE_INLINE static void run(const BwdParamsOf<C>& params, Shared& shared) {
    if (Machine::thread() == 0) {
      shared.init_barriers();
      Machine::prefetch_map(params.k_map), Machine::prefetch_map(params.v_map);
      Machine::prefetch_map(params.q_map), Machine::prefetch_map(params.dout_map);
      if constexpr (C.bias_boxes) Machine::prefetch_map(params.bias_map);
    }
    Machine::barrier();
    // By way of a shuffle: else the compiler reads the special register anew in every step, which takes 50 to 150
    // cycles while shared memory is busy.
    const auto thread = static_cast<int>(Machine::shuffle_xor(static_cast<uint32_t>(Machine::thread()), 0));
    if constexpr (C.shares_keys) {
      run_wide(params, shared, thread);
    } else {
      run_pair(params, shared, thread);
    }
  }

 private:
  static constexpr WarpgroupRegisters kRegisters = warpgroup_registers(C);
  static constexpr auto kThreads = static_cast<uint32_t>(kWarpgroupThreads);
  using Items = Choose<C.loader_schedules(), BwdScheduler<Machine, C>, BwdItems<Machine, C>>;

  TILEWISE_INLINE static void run_pair(const BwdParamsOf<C>& params, Shared& shared, int thread) {
    const Items items(params, shared);
    // Anew for each tile of keys, lest what is found of it lives in registers through all of them.
    const auto own = [&] { return C.persistent ? Machine::not_hoisted(thread) : thread; };
    if (static_cast<uint32_t>(Machine::thread()) < kThreads) {
      Machine::template dealloc_registers<kRegisters.producer>();
      if constexpr (C.own_couriers()) {
        load_and_carry(params, shared, items, thread);
      } else if constexpr (C.own_dq) {
        if (thread < Machine::kLanes) load_alone(params, shared, items, thread == 0);
      } else {
        multiply_dq(params, shared, items, thread, own);
      }
    } else if (C.warpgroups() == 3 || static_cast<uint32_t>(Machine::thread()) < 3 * kThreads) {
      Machine::template alloc_registers<kRegisters.consumer>();
      visit_with_sums<BwdGradients<Ops, C>>(
          items, [&](const BwdWork& work, BwdRun& run, BwdGradients<Ops, C>& sums)
                     TILEWISE_INLINE_LAMBDA { BwdMainloop<Ops, C>(params, shared, work, run, own(), sums).run(work); });
      if constexpr (C.rounds) BwdRounder<Machine, C>(params).run();
    } else if constexpr (C.dropout) {
      Machine::template dealloc_registers<kRegisters.other>();
      items.template visit_all<true>([&](const BwdWork& work, const BwdRun& run) {
        BwdDraws<Machine, C>(params, shared, work, run, own() - 3 * kWarpgroupThreads).run();
      });
    } else if constexpr (C.couriers()) {
      Machine::template dealloc_registers<kRegisters.other>();
      load_and_carry(params, shared, items, thread - 3 * kWarpgroupThreads);
    }
    if (thread % Machine::kLanes == 0) Machine::wait_stores_read();  // the rest arrives after this block has ended
  }

  /// By a warpgroup that does nothing else, but for its first warp, which loads tiles unless there are couriers.
  template <class Own>
  TILEWISE_INLINE static void multiply_dq(const BwdParamsOf<C>& params, Shared& shared, const Items& items, int thread,
                                          const Own& own) {
    if constexpr (C.draws_first() && !C.couriers()) {
      if (thread < Machine::kLanes) items.publish_first(thread == 0);
    }
    items.visit_all([&](const BwdWork& work, BwdRun& run) {
      if constexpr (C.couriers()) {
        BwdDqStaged<Ops, C>(params, shared, work, run, own()).run();
      } else {
        BwdDqSums<Ops, C>(params, shared, work, run, own()).run([&] {
          items.publish(run, work.template ends_keys<C>(params), thread == 0);
        });
      }
    });
    if constexpr (!C.couriers()) wait_for_late_preprocess();
  }

  TILEWISE_INLINE static void run_wide(const BwdParamsOf<C>& params, Shared& shared, int thread) {
    const Items items(params, shared);
    const auto own = [&] { return C.persistent ? Machine::not_hoisted(thread) : thread; };
    const auto block_thread = static_cast<uint32_t>(Machine::thread());
    if (block_thread < kThreads) {
      Machine::template dealloc_registers<kRegisters.producer>();
      if (C.dropout || thread < Machine::kLanes) load_wide(params, shared, items, thread);
    } else if (block_thread < 2 * kThreads) {
      Machine::template dealloc_registers<kRegisters.other>();
      items.visit_all([&](const BwdWork& work, const BwdRun& run) {
        BwdDqAdds<Ops, C>(params, shared, work, run, own() - kWarpgroupThreads).run();
      });
    } else if (block_thread < 3 * kThreads) {
      Machine::template alloc_registers<kRegisters.consumer>();
      run_wide_role<BwdRole::sums_dv>(params, shared, items, own);
      if constexpr (C.rounds) BwdRounder<Machine, C>(params).run();
    } else {
      Machine::template alloc_registers<kRegisters.consumer>();
      run_wide_role<BwdRole::sums_dk>(params, shared, items, own);
      if constexpr (C.rounds) BwdRounder<Machine, C>(params).run();
    }
  }

  /// By those that load tiles, once they have: what comes next waits for this launch alone, and nobody may have waited
  /// for a head that sees no keys. The last block does: others may end long before the preprocess does.
  TILEWISE_INLINE static void wait_for_late_preprocess() {
    if constexpr (C.late_preprocess) {
      if (Machine::block() + 1 == Machine::blocks()) wait_for_step_before<Machine>();
    }
  }

  template <BwdRole kRole, class Own>
  TILEWISE_INLINE static void run_wide_role(const BwdParamsOf<C>& params, Shared& shared, const Items& items,
                                            const Own& own) {
    using Wide = BwdWide<Ops, C, kRole>;
    visit_with_sums<typename Wide::Sums>(items, [&](const BwdWork& work, BwdRun& run, typename Wide::Sums& sums) {
      Wide(params, shared, work, run, own(), sums).run();
    });
  }
  /// visit(work, run, sums): these are a tile of keys' and, where several query heads have that one after the other, of
  /// all of them.
  template <class Sums, class Visit>
  TILEWISE_INLINE static void visit_with_sums(const Items& items, const Visit& visit) {
    if constexpr (C.grouped) {
      Sums sums;
      items.visit_all([&](const BwdWork& work, BwdRun& run) TILEWISE_INLINE_LAMBDA { visit(work, run, sums); });
    } else {
      items.visit_all([&](const BwdWork& work, BwdRun& run) TILEWISE_INLINE_LAMBDA {
        Sums sums;
        visit(work, run, sums);
      });
    }
  }

  /// Of the warpgroup that does nothing else a warp loads tiles, others are couriers, and one may tell of turns.
  TILEWISE_INLINE static void load_and_carry(const BwdParamsOf<C>& params, Shared& shared, const Items& items,
                                             int thread) {
    static_assert(C.kCouriers + 1 < kWarpgroupThreads / Machine::kLanes);
    const int32_t warp = uniform<Machine>(thread / Machine::kLanes);
    if (warp == 0) {
      load_alone(params, shared, items, thread == 0);
    } else if (warp <= C.kCouriers) {
      items.visit_all([&](const BwdWork& work, const BwdRun& run) {
        if constexpr (C.own_dq) {
          BwdOwnCourier<Machine, C>(params, shared, work, run, warp - 1).run(work.steps());
        } else {
          BwdCourier<Machine, C>(params, shared, work, run, warp - 1).run();
        }
      });
    } else if constexpr (C.tells_groups()) {
      items.visit_all(
          [&](const BwdWork& work, const BwdRun& run) { tell_of_group<Machine, C>(params, shared, work, run.seen); });
    }
  }
  TILEWISE_INLINE static void load_wide(const BwdParamsOf<C>& params, Shared& shared, const Items& items, int thread) {
    if constexpr (C.dropout) {
      items.visit_all([&](const BwdWork& work, BwdRun& run) {
        BwdLoader<Machine, C> loader(params, shared, work, run, thread == 0);
        BwdDraws<Machine, C>(params, shared, work, run, thread).run_beside(loader);
      });
      wait_for_late_preprocess();
    } else {
      load_alone(params, shared, items, thread == 0);
    }
  }
  TILEWISE_INLINE static void load_alone(const BwdParamsOf<C>& params, Shared& shared, const Items& items, bool leads) {
    if constexpr (C.persistent) items.publish_first(leads);
    items.visit_all([&](const BwdWork& work, BwdRun& run) {
      BwdLoader<Machine, C> loader(params, shared, work, run, leads);
      if constexpr (C.persistent) {
        const bool ends_keys = work.template ends_keys<C>(params);
        loader.load_among_others([&] { return ends_keys ? items.draw(leads) : 0u; },
                                 [&](uint32_t drawn) {
                                   if (ends_keys) {
                                     items.publish_drawn(run, drawn, leads);
                                   } else {
                                     items.publish_next_head(run, leads);
                                   }
                                 });
      } else {
        loader.load_all();
      }
    });
    wait_for_late_preprocess();
  }
};

}  // namespace tilewise::device
