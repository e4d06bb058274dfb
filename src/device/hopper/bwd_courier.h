// Where dq's additions have an order and warps are to spare: those that multiply dQ leave their sums in shared memory
// and go on, and couriers, which wait for turns and for memory, take them to dq_accum.
#pragma once

#include "device/hopper/bwd_dq.h"

namespace tilewise::device {

/// Which courier takes the sums of a block's step, and in which phase of its barriers. Steps count through all tiles of
/// keys.
struct CourierPlace {
  int32_t courier;
  uint32_t parity;
};
template <HopperBwdConfig C>
TILEWISE_INLINE CourierPlace courier_place(const BwdRun& run, int32_t step) {
  const uint32_t count = run.steps + static_cast<uint32_t>(step);
  return {static_cast<int32_t>(count % C.kCouriers), count / C.kCouriers % 2};
}

/// The warpgroup that multiplies, and leaves the sums of each part where couriers find them.
template <class Ops, HopperBwdConfig C>
class BwdDqStaged : BwdDqProducts<Ops, C> {
  using Base = BwdDqProducts<Ops, C>;
  using Base::shared_, Base::lane_, Base::score_place_;
  using typename Base::Machine, typename Base::Shared, typename Base::Parts;

 public:
  TILEWISE_INLINE BwdDqStaged(const HopperBwdParams& params, Shared& shared, const BwdWork& work, const BwdRun& run,
                              int thread)
      : Base(params, shared, work, run.steps, thread),
        run_(run),
        place_(ring_place<Parts::kStaged>(run.steps * kParts)) {}

  TILEWISE_INLINE void run() {
    const int32_t steps = this->work_.steps();
    if (steps == 0) return;
    shared_.keys_full.wait(run_.seen % 2);
    TILEWISE_NO_UNROLL
    for (int32_t step = 0; step < steps; ++step) {
      score_place_.wait_full(shared_.score_ring);
      for_each_index<0, Parts::kCount>([&](auto part) { stage_part<decltype(part)::value>(step); });
      publish(Parts::kCount - 1, step);
    }
    arrive_as_warp(shared_.keys_done, lane_);
  }

 private:
  /// A part is fenced behind the products of the next one, which would otherwise wait for that.
  template <int kPart>
  TILEWISE_INLINE void stage_part(int32_t step) {
    Fragment<Ops, 16, Parts::cols(kPart)> dQ;
    this->template issue<kPart>(dQ.tile[0]);
    if (kPart > 0) publish(kPart - 1, step);
    const bool free = shared_.handover.read[place_.stage].test(place_.parity ^ 1);
    Machine::template wgmma_wait<0>();
    pin_registers<Machine>(dQ);
    if (kPart + 1 == Parts::kCount) this->release_scores();
    if (!free) shared_.handover.read[place_.stage].wait(place_.parity ^ 1);
    this->stage(dQ, static_cast<int>(place_.stage));
    place_.advance();
  }
  TILEWISE_INLINE void publish(int part, int32_t step) {
    Machine::fence_shared_writes();
    arrive_as_warp(shared_.handover.staged[courier_place<C>(run_, step).courier][part], lane_);
  }

  static constexpr uint32_t kParts = Parts::kCount;
  const BwdRun& run_;
  RingPlace<Parts::kStaged> place_;
};

/// A warp that takes the sums of every kCouriers-th tile. To see that its turn has come takes 1,000 cycles, and 1,200
/// to hand it on, until the sums have arrived.
template <class Machine, HopperBwdConfig C>
class BwdCourier {
  using Shared = HopperBwdShared<Machine, C>;
  using Parts = DqParts<C>;

 public:
  TILEWISE_INLINE BwdCourier(const HopperBwdParams& params, Shared& shared, const BwdWork& work, const BwdRun& run,
                             int32_t index)
      : p_(params), shared_(shared), work_(work), run_(run), index_(index), turns_(params, work, 0) {}

  TILEWISE_INLINE void run() {
    wait_for_step_before<Machine>();  // before it looks at a turn
    if (Machine::lane() != 0) return;
    const int32_t count = work_.queries.count(), steps = work_.steps();
    int32_t tiles_left = count;
    float* to = first_sums<C>(p_, work_);
    TILEWISE_NO_UNROLL
    for (int32_t step = 0; step < steps; ++step) {
      const CourierPlace place = courier_place<C>(run_, step);
      const bool takes = place.courier == index_;
      if (takes) take(step, place.parity, to, turns_.begins_sums(tiles_left));
      to += C.tile_floats();
      const bool enters_head = --tiles_left == 0;
      if (enters_head) tiles_left = count, to += p_.dq_accum_a_head - static_cast<int64_t>(count) * C.tile_floats();
      turns_.advance(enters_head);
      if (takes) turns_.hand_on();
    }
  }

 private:
  /// Until the tile's sums have arrived.
  TILEWISE_INLINE void take(int32_t step, uint32_t parity, float* to, bool begins_sums) {
    if (!begins_sums) turns_.await();
    for_each_index<0, Parts::kCount>([&](auto part) {
      constexpr int kPart = decltype(part)::value;
      shared_.handover.staged[index_][kPart].wait(parity);
      send<kPart>(staged_at(kPart, step), to + Parts::place(kPart), begins_sums);
    });
    for_each_index<0, Parts::kCount>([&](auto part) {
      constexpr int kPart = decltype(part)::value;
      Machine::template wait_stores_read<Parts::kCount - 1 - kPart>();
      shared_.handover.read[staged_at(kPart, step)].arrive();
    });
    Machine::wait_stores();
  }
  TILEWISE_INLINE int staged_at(int part, int32_t step) const {
    return Parts::staged(part, step + static_cast<int32_t>(run_.steps % Parts::kStaged));
  }
  /// A part's sums, of all warps.
  template <int kPart>
  TILEWISE_INLINE void send(int staged, float* to, bool begins_sums) {
    constexpr int32_t kBytes = 16 * Parts::cols(kPart) * static_cast<int32_t>(sizeof(float));
    TILEWISE_NO_UNROLL
    for (int warp = 0; warp < C.kDqWarps; ++warp, to += 16 * C.head_dim) {
      const float* const sums = shared_.handover.dq[warp][staged];
      if (begins_sums) {
        Machine::store_run(to, sums, kBytes);
      } else {
        Machine::add_run(to, sums, kBytes);
      }
    }
    Machine::commit_stores();
  }

  const HopperBwdParams& p_;
  Shared& shared_;
  const BwdWork& work_;
  const BwdRun& run_;
  const int32_t index_;
  BwdTurns<Machine, C> turns_;
};

}  // namespace tilewise::device
