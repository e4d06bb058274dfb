// Where those that compute multiply dQ too and its additions have an order: warps that take a tile's sums from shared
// memory to dq_accum, and load those so far where they are to be rounded with the last ones.
#pragma once

#include "device/hopper/bwd_courier.h"

namespace tilewise::device {

/// One that takes the sums of every other step. There is one place for a tile's sums; who has taken those of the step
/// before fetches into it.
template <class Machine, auto C>
class BwdOwnCourier {
  using Shared = HopperBwdShared<Machine, C>;
  static constexpr int32_t kTileBytes = C.tile_floats() * static_cast<int32_t>(sizeof(float));

 public:
  TILEWISE_INLINE BwdOwnCourier(const BwdParamsOf<C>& params, Shared& shared, const BwdWork& work, const BwdRun& run,
                                int32_t index)
      : shared_(shared),
        run_(run),
        index_(index),
        stride_(work.template query_stride<C>() * C.tile_floats()),
        turns_(params, work, 0),
        to_(first_sums<C>(params, work)) {
    static_assert(C.kCouriers == 2 && C.persistent);
  }

  TILEWISE_INLINE void run(int32_t steps) {
    wait_for_preprocess<Machine, C>();  // before it looks at a turn
    if (Machine::lane() != 0) return;
    if (steps > 0 && courier_place<C>(run_, -1).courier == index_ && fetches(steps)) fetch();
    TILEWISE_NO_UNROLL
    for (int32_t left = steps; left > 0; --left) {
      const CourierPlace place = courier_place<C>(run_, steps - left);
      if (place.courier == index_) {
        carry(left, place.parity);
      } else {
        go_on();
      }
    }
  }

 private:
  /// Until the sums have arrived of the tile of queries at hand, of which so many are left.
  TILEWISE_INLINE void carry(int32_t left, uint32_t parity) {
    auto& handover = shared_.handover;
    const bool stays = C.last_rounds && turns_.ends_sums(left), begins = turns_.begins_sums(left);
    if (!stays && !begins) turns_.await();
    handover.staged[index_].wait(parity);
    if (!stays) {
      send_sums<Machine>(to_, handover.dq[0], kTileBytes, begins);
      Machine::commit_stores();
      Machine::wait_stores_read();
    }
    handover.read.arrive();
    if (!stays) Machine::wait_stores();
    go_on();
    if (!stays) turns_.hand_on();
    if (left > 1 && fetches(left - 1)) fetch();
  }
  TILEWISE_INLINE void go_on() {
    to_ += stride_;
    turns_.advance(false);
  }

  /// Whether sums so far are added to in registers.
  TILEWISE_INLINE bool fetches(int32_t left) const {
    return C.last_rounds && turns_.ends_sums(left) && !turns_.begins_sums(left);
  }
  TILEWISE_INLINE void fetch() {
    auto& handover = shared_.handover;
    turns_.await();
    handover.fetched.arrive_and_expect(kTileBytes);
    Machine::copy_run(handover.dq[0], to_, kTileBytes, handover.fetched.state());
  }

  Shared& shared_;
  const BwdRun& run_;
  const int32_t index_;
  const int32_t stride_;  // from a step's sums to the next one's
  BwdTurns<Machine, C> turns_;
  float* to_;
};

}  // namespace tilewise::device
