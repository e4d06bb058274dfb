// Which tiles of keys a block of wide heads works on, one after the other. Its loader, which has nothing else to do,
// runs ahead of the others: it draws each tile from a counter in memory, finds its place, and tells them.
#pragma once

#include "device/hopper/bwd_shared.h"
#include "device/hopper/bwd_work.h"
#include "device/sm90/warpgroup.h"

namespace tilewise::device {

/// Of the tile of keys at hand, found anew, lest it lives in registers through the steps: where the loader has left it,
/// or by its number.
template <class Machine, auto C>
TILEWISE_INLINE BwdWork work_at_hand(const BwdParamsOf<C>& p, const HopperBwdShared<Machine, C>& shared,
                                     const BwdRun& run) {
  if constexpr (!C.loader_schedules()) return find_work<Machine, C>(p, Machine::not_hoisted(run.item), run.member);
  const auto& item = shared.items[run.index % 2];
  return work_at<Machine, C>(p, {item.tile, item.head, item.batch}, run.member);
}

template <class Machine, auto C>
class BwdScheduler {
  using Shared = HopperBwdShared<Machine, C>;

 public:
  TILEWISE_INLINE BwdScheduler(const BwdParamsOf<C>& params, Shared& shared) : p_(params), shared_(shared) {}

  /// visit(work, the run so far) for each of the block's tiles of keys.
  template <class Visit>
  TILEWISE_INLINE void visit_all(const Visit& visit) const {
    BwdRun run{};
    OrderPlace place = next(run);
    TILEWISE_NO_UNROLL
    while (place.tile >= 0) {
      place.tile = Machine::agreed(place.tile);
      if constexpr (C.grouped) run.member = Machine::agreed(shared_.items[run.index % 2].member);
      run.template agree<Machine>();
      const BwdWork work = work_at<Machine, C>(p_, place, run.member);
      visit(work, run);
      arrive_as_lanes(shared_.item_read[run.index % 2]);
      run.template advance<C>(p_, work);
      place = next(run);
    }
  }

  /// Asks for the number of a tile, by the thread that leads: the answer takes up to 5,000 cycles, behind dq's sums.
  TILEWISE_INLINE uint32_t draw(bool leads) const { return leads ? Machine::count_later(p_.tile_counter) : 0; }
  /// Tells the block of its first tile, and of the one that was drawn after run's.
  TILEWISE_INLINE void publish_first(bool leads) const {
    if constexpr (C.draws_first()) wait_for_preprocess<Machine, C>();  // which clears the counter
    publish(0, place_of(C.draws_first() ? number_of(draw(leads)) : Machine::block()), 0, leads);
  }
  TILEWISE_INLINE void publish_drawn(const BwdRun& run, uint32_t drawn, bool leads) const {
    int32_t number = number_of(drawn);
    if constexpr (C.lengths) {  // of packed sequences many have no such keys
      TILEWISE_NO_UNROLL
      while (number < key_tiles(p_.order) && find_work<Machine, C>(p_, number).rows <= 0)
        number = number_of(draw(leads));
    }
    publish(run.index + 1, place_of(number), 0, leads);
  }
  /// The same tile for the next query head.
  TILEWISE_INLINE void publish_next_head(const BwdRun& run, bool leads) const {
    const auto& item = shared_.items[run.index % 2];
    publish(run.index + 1, {item.tile, item.head, item.batch}, run.member + 1, leads);
  }

 private:
  TILEWISE_INLINE OrderPlace next(const BwdRun& run) const {
    const uint32_t slot = run.index % 2;
    shared_.item_full[slot].wait(run.index / 2 % 2);
    const auto& item = shared_.items[slot];
    return {Machine::agreed(item.tile), Machine::agreed(item.head), Machine::agreed(item.batch)};
  }
  /// What the thread that leads has drawn, in all lanes.
  TILEWISE_INLINE static int32_t number_of(uint32_t drawn) {
    return static_cast<int32_t>(agreed<Machine>(drawn)) + (C.draws_first() ? 0 : Machine::blocks());
  }
  TILEWISE_INLINE OrderPlace place_of(int32_t number) const {
    return number < key_tiles(p_.order) ? key_place<C>(p_, number) : OrderPlace{-1, 0, 0};
  }
  TILEWISE_INLINE void publish(uint32_t index, const OrderPlace& place, int32_t member, bool leads) const {
    const uint32_t slot = index % 2;
    shared_.item_read[slot].wait((index / 2 + 1) % 2);
    Machine::wave_sync();
    if (!leads) return;
    auto& item = shared_.items[slot];
    store_number<Machine>(item.tile, place.tile);
    store_number<Machine>(item.head, place.head), store_number<Machine>(item.batch, place.batch);
    if constexpr (C.grouped) store_number<Machine>(item.member, member);
    shared_.item_full[slot].arrive();
  }

  const BwdParamsOf<C>& p_;
  Shared& shared_;
};

}  // namespace tilewise::device
