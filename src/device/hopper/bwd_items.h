// Which tiles of keys a block of the backward kernel works on: one, or one after the other by a counter in memory.
#pragma once

#include "device/hopper/bwd_loader.h"
#include "device/hopper/bwd_work.h"
#include "device/sm90/warpgroup.h"

namespace tilewise::device {

template <class Machine, auto C>
class BwdItems {
  using Shared = HopperBwdShared<Machine, C>;

 public:
  TILEWISE_INLINE BwdItems(const BwdParamsOf<C>& params, Shared& shared) : p_(params), shared_(shared) {}

  /// visit(work, the run so far) for each of a block's tiles of keys. kDraws: by the warps that make dropout's draws,
  /// which a tile that no query sees waits for nowhere else: they say that they have read its number.
  template <bool kDraws = false, class Visit>
  TILEWISE_INLINE void visit_all(const Visit& visit) const {
    BwdRun run{};
    run.item = Machine::block();
    if constexpr (C.draws_first()) find_next<kDraws>(run, 0);
    if constexpr (!C.persistent) {
      const BwdWork work = find_work<Machine, C>(p_, run.item);
      if (work.rows > 0) visit(work, run);
    } else {
      TILEWISE_NO_UNROLL
      while (run.item < key_tiles(p_.order)) {
        run.item = Machine::agreed(run.item);
        run.template agree<Machine>();
        const BwdWork work = find_work<Machine, C>(p_, run.item, run.member);
        visit(work, run);
        find_next<kDraws>(run, run.index + 1);
        run.template advance<C>(p_, work);
      }
    }
  }

  /// Tells the block of its first tile, where that is drawn.
  TILEWISE_INLINE void publish_first(bool leads) const {
    wait_for_preprocess<Machine, C>();  // which clears the counter
    if (!leads) return;
    store_number<Machine>(shared_.items[0].number, static_cast<int32_t>(Machine::count(p_.tile_counter)));
    if constexpr (C.grouped) store_number<Machine>(shared_.items[0].member, 0);
    shared_.item_full[0].arrive();
  }
  /// Finds the tile after the one at hand, by one warp, once all warps have begun this one. But those that draw nobody
  /// is asked whether they have read the number before: the loader has waited for the tile before, which all had a part
  /// in.
  TILEWISE_INLINE void publish(const BwdRun& run, bool ends_keys, bool leads) const {
    int32_t number = run.item;
    const int32_t member = ends_keys ? 0 : run.member + 1;
    BwdWork work{};
    if (C.grouped && !ends_keys) {
      work = find_work<Machine, C>(p_, number, member);
    } else {
      TILEWISE_NO_UNROLL
      do {
        number = leads
                     ? static_cast<int32_t>(Machine::count(p_.tile_counter)) + (C.draws_first() ? 0 : Machine::blocks())
                     : 0;
        number = Machine::agreed(number);
        work = number < key_tiles(p_.order) ? find_work<Machine, C>(p_, number) : BwdWork{};
        // Of packed sequences many have no such keys.
      } while (C.lengths && number < key_tiles(p_.order) && work.rows <= 0);
    }
    const uint32_t slot = (run.index + 1) % 2;
    if constexpr (C.dropout) {
      shared_.item_read[slot].wait(parity_of(run.index + 1) ^ 1);
      Machine::wave_sync();
    }
    if (!leads) return;
    auto& item = shared_.items[slot];
    store_number<Machine>(item.number, number), store_number<Machine>(item.steps, work.steps());
    if constexpr (C.grouped) store_number<Machine>(item.member, member);
    if constexpr (BwdLoader<Machine, C>::kEarly) {
      store_number<Machine>(item.k_row, work.k_row), store_number<Machine>(item.head, work.head);
      store_number<Machine>(item.batch, work.batch), store_number<Machine>(item.query_head, work.query_head);
      store_number<Machine>(item.first_query, work.queries.begin * C.block_m);
    }
    shared_.item_full[slot].arrive();
  }

 private:
  /// Of the barriers of the block's tile `index`: the first is told of only where it is drawn.
  TILEWISE_INLINE static uint32_t parity_of(uint32_t index) { return (index - !C.draws_first()) / 2 % 2; }
  template <bool kDraws>
  TILEWISE_INLINE void find_next(BwdRun& run, uint32_t index) const {
    shared_.item_full[index % 2].wait(parity_of(index));
    run.item = Machine::agreed(shared_.items[index % 2].number);
    if constexpr (C.grouped) run.member = Machine::agreed(shared_.items[index % 2].member);
    if constexpr (kDraws) arrive_as_lanes(shared_.item_read[index % 2]);
  }

  const BwdParamsOf<C>& p_;
  Shared& shared_;
};

}  // namespace tilewise::device
