// Where dq's additions have an order and warps are to spare: those that multiply dQ leave their sums in shared memory
// and go on, and couriers, which wait for turns and for memory, take them to dq_accum. The last sums of a tile of
// queries need not go there: what has been added up so far is fetched, they are added to it, and leave as dq.
#pragma once

#include "device/hopper/bwd_dq.h"
#include "device/hopper/bwd_scheduler.h"

namespace tilewise::device {

/// Which courier takes the sums of a block's step, and in which phase of its barriers. Steps count through all tiles of
/// keys.
struct CourierPlace {
  int32_t courier;
  uint32_t parity;
};
template <auto C>
TILEWISE_INLINE CourierPlace courier_place(const BwdRun& run, int32_t step) {
  const uint32_t count = run.steps + static_cast<uint32_t>(step);
  return {static_cast<int32_t>(count % C.kCouriers), count / C.kCouriers % 2};
}

/// The rows of queries whose sums a warp has of a step's tile, counted from the sequence's first one. Those of a packed
/// sequence's end don't leave in a box, which would write on into the next one.
template <auto C>
struct BwdDqRowsOfWarp {
  int32_t first;
  bool whole;
  TILEWISE_INLINE BwdDqRowsOfWarp(const BwdWork& work, int32_t step, int row_chunk, int warp)
      : first(work.query_tile<C>(step) * C.block_m + 64 * row_chunk + kDqRows * warp),
        whole(first + kDqRows <= work.rows_q) {}
};

/// The warpgroup that multiplies, and leaves the sums of each part where couriers find them.
template <class Ops, auto C>
class BwdDqStaged : BwdDqProducts<Ops, C> {
  using Base = BwdDqProducts<Ops, C>;
  using Base::p_, Base::shared_, Base::work_, Base::lane_, Base::warp_, Base::score_place_;
  using Base::turns_;
  using typename Base::Machine, typename Base::Shared, typename Base::Parts;

 public:
  TILEWISE_INLINE BwdDqStaged(const BwdParamsOf<C>& params, Shared& shared, const BwdWork& work, BwdRun& run,
                              int thread)
      : Base(params, shared, work, run, thread), run_(run), place_(ring_place<Parts::kStaged>(run.steps * kParts)) {}

  TILEWISE_INLINE void run() {
    const int32_t steps = work_.steps();
    if (steps == 0) return;
    this->wait_keys(run_);
    int32_t step = 0;
    TILEWISE_NO_UNROLL
    for (; step < steps - (C.last_rounds ? work_.tiles_ended : 0); ++step) {
      score_place_.wait_full(shared_.score_ring);
      for_each_index<0, Parts::kCount>([&](auto part) { stage_part<decltype(part)::value>(step); });
      publish(Parts::kCount - 1, step);
    }
    if constexpr (C.last_rounds) {
      TILEWISE_NO_UNROLL
      for (; step < steps; ++step) finish_tile(step);
    }
  }

 private:
  TILEWISE_INLINE void release_operands(int32_t step) {
    Base::release_operands(step + 1 == work_.steps() && work_.template ends_keys<C>(p_));
  }
  /// A part is fenced behind the products of the next one, which would otherwise wait for that.
  template <int kPart>
  TILEWISE_INLINE void stage_part(int32_t step) {
    Fragment<Ops, 16, Parts::cols(kPart)> dQ;
    this->template issue<kPart>(dQ.tile[0]);
    if (kPart > 0) publish(kPart - 1, step);
    const bool free = shared_.handover.read[place_.stage].test(place_.parity ^ 1);
    Machine::template wgmma_wait<0>();
    pin_registers<Machine>(dQ);
    if (kPart + 1 == Parts::kCount) release_operands(step);
    if (!free) shared_.handover.read[place_.stage].wait(place_.parity ^ 1);
    this->stage(dQ, static_cast<int>(place_.stage));
    place_.advance();
  }

  // ------------------------------------------------------------------ last sums
  /// A tile of queries to which no tile of keys adds after this one.
  TILEWISE_INLINE void finish_tile(int32_t step) {
    find_seeing_rows(step);
    const bool adds = !turns_.begins_sums(work_.steps() - step);
    score_place_.wait_full(shared_.score_ring);
    for_each_index<0, Parts::kCount>([&](auto part) { finish_part<decltype(part)::value>(step, adds); });
    publish(Parts::kCount - 1, step);
  }
  template <int kPart>
  TILEWISE_INLINE void finish_part(int32_t step, bool adds) {
    Fragment<Ops, 16, Parts::cols(kPart)> dQ;
    this->template issue<kPart>(dQ.tile[0]);
    if (kPart > 0) publish(kPart - 1, step);
    Machine::template wgmma_wait<0>();
    pin_registers<Machine>(dQ);
    if (kPart + 1 == Parts::kCount) release_operands(step);
    if (adds) {
      add_fetched(dQ);
    } else {
      shared_.handover.read[place_.stage].wait(place_.parity ^ 1);
    }
    if constexpr (C.lengths) {
      const DqRows rows(work_, step, Parts::row_chunk(kPart), warp_);
      rows.whole ? round<kPart>(dQ) : store_last_rows<kPart>(dQ, rows.first);
    } else {
      round<kPart>(dQ);
    }
    place_.advance();
  }
  /// Of the lane's two rows of each 64: hidden keys of NaN, times 0, are not to reach one that sees nothing.
  TILEWISE_INLINE void find_seeing_rows(int32_t step) {
    const int64_t head = work_.batch * p_.shape.num_heads_q + work_.query_head;
    const float* const lse2 = p_.lse2 + head * p_.rows_a_head + work_.template query_tile<C>(step) * C.block_m;
    TILEWISE_UNROLL
    for (int i = 0; i < kRowsOfLane; ++i) {
      const int row = i / 2 * 64 + 16 * warp_ + lane_ / 4 + i % 2 * 8;
      sees_[i] = Machine::load_global(lse2 + statistic_place(row)) != kInfinity;
    }
  }
  /// The sums so far of a part, which a courier has asked for once the place was free.
  template <class Sums>
  TILEWISE_INLINE void add_fetched(Sums& dQ) {
    shared_.handover.fetched[place_.stage].wait(run_.fetched >> place_.stage & 1);
    run_.fetched ^= 1u << place_.stage;
    add_staged<Machine>(dQ, shared_.handover.dq[warp_][place_.stage], lane_);
    Machine::wave_sync();  // before any lane's rounded sums take their place
  }
  template <int kPart, class Sums>
  TILEWISE_INLINE void round(const Sums& dQ) {
    auto& tile = shared_.handover.rounded(warp_, static_cast<int>(place_.stage));
    const int place = tile.place_of(lane_ % 16, lane_ / 16);
    store_pairs<Machine, Sums::kColTiles>(tile, place,
                                          [&](int c, int slot) { return rounded<kPart>(dQ.tile[0][c], slot); });
  }
  /// Two columns of one of the lane's rows.
  template <int kPart>
  TILEWISE_INLINE uint32_t rounded(const Sm80Accumulator& x, int slot) const {
    const uint32_t two = Machine::template pack<C.q_type>(x[2 * slot] * p_.score.softmax_scale,
                                                          x[2 * slot + 1] * p_.score.softmax_scale);
    return sees_[2 * Parts::row_chunk(kPart) + slot] ? two : 0;
  }
  /// Of a sequence that ends within them, by each lane.
  template <int kPart, class Sums>
  TILEWISE_INLINE void store_last_rows(const Sums& dQ, int32_t first) const {
    const BwdWork work = work_at_hand<Machine, C>(p_, shared_, run_);  // not kept in registers through the steps
    TILEWISE_UNROLL
    for (int slot = 0; slot < 2; ++slot) {
      const int32_t row = first + lane_ / 4 + 8 * slot;
      if (row >= work.rows_q) continue;
      auto* const to = dq_row<C>(p_, work, row);
      TILEWISE_UNROLL
      for (int c = 0; c < dQ.kColTiles; ++c) {
        const int32_t col = Parts::first_col(kPart) + 8 * c + 2 * (lane_ % 4);
        if (!C.exact_dims && col >= p_.shape.head_dim) continue;
        Machine::store_global(reinterpret_cast<uint32_t*>(to + col), rounded<kPart>(dQ.tile[0][c], slot));
      }
    }
  }

  TILEWISE_INLINE void publish(int part, int32_t step) {
    Machine::fence_shared_writes();
    auto& staged = shared_.handover.staged[courier_place<C>(run_, step).courier][part];
    if constexpr (C.last_rounds) {
      arrive_as_lanes(staged);  // each of which may have read what was fetched
    } else {
      arrive_as_warp(staged, lane_);
    }
  }

  using DqRows = BwdDqRowsOfWarp<C>;
  static constexpr uint32_t kParts = Parts::kCount;
  static constexpr int kRowsOfLane = C.block_m / 32;
  BwdRun& run_;
  RingPlace<Parts::kStaged> place_;
  bool sees_[kRowsOfLane];
};

/// A warp that takes the sums of every kCouriers-th tile. To see that its turn has come takes 1,000 cycles, and 1,200
/// to hand it on, until the sums have arrived.
template <class Machine, auto C>
class BwdCourier {
  using Shared = HopperBwdShared<Machine, C>;
  using Parts = DqParts<C>;
  using DqRows = BwdDqRowsOfWarp<C>;

 public:
  TILEWISE_INLINE BwdCourier(const BwdParamsOf<C>& params, Shared& shared, const BwdWork& work, const BwdRun& run,
                             int32_t index)
      : p_(params), shared_(shared), work_(work), run_(run), index_(index), turns_(params, work, 0) {}

  TILEWISE_INLINE void run() {
    wait_for_preprocess<Machine, C>();  // before it looks at a turn
    if (Machine::lane() != 0) return;
    const int32_t count = work_.queries.count(), steps = work_.steps();
    int32_t tiles_left = count;
    float* to = first_sums<C>(p_, work_);
    TILEWISE_NO_UNROLL
    for (int32_t step = 0; step < steps; ++step) {
      const CourierPlace place = courier_place<C>(run_, step);
      const bool takes = place.courier == index_;
      const bool ends = C.last_rounds && turns_.ends_sums(tiles_left);
      if (takes && !ends) take(step, place.parity, to, turns_.begins_sums(tiles_left));
      if constexpr (C.last_rounds) {
        if (takes && ends) finish(step, place.parity, to, turns_.begins_sums(tiles_left));
      }
      to += work_.template query_stride<C>() * C.tile_floats();
      const bool enters_head = --tiles_left == 0;
      if (enters_head) tiles_left = count, to += p_.dq_accum_a_head - static_cast<int64_t>(count) * C.tile_floats();
      turns_.advance(enters_head);
      if (takes && !ends) turns_.hand_on();
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
  /// The last sums of a tile of queries: those so far are fetched, and what has been added to them leaves as dq.
  TILEWISE_INLINE void finish(int32_t step, uint32_t parity, const float* from, bool begins_sums) {
    if (!begins_sums) {
      turns_.await();
      for_each_index<0, Parts::kCount>([&](auto part) {
        constexpr int kPart = decltype(part)::value;
        fetch<kPart>(step, from + Parts::place(kPart));
      });
    }
    for_each_index<0, Parts::kCount>([&](auto part) {
      constexpr int kPart = decltype(part)::value;
      shared_.handover.staged[index_][kPart].wait(parity);
      TILEWISE_NO_UNROLL
      for (int warp = 0; warp < C.kDqWarps; ++warp) {
        const DqRows rows(work_, step, Parts::row_chunk(kPart), warp);
        if (C.lengths && !rows.whole) continue;
        Machine::store_box(p_.dq_map, &shared_.handover.rounded(warp, staged_at(kPart, step)), Parts::first_col(kPart),
                           0, work_.q_row + rows.first, work_.query_head, p_.shape.cu_seqlens_q ? 0 : work_.batch);
      }
      Machine::commit_stores();
      // At once: what comes into this place next has a longer way than a step's products.
      Machine::wait_stores_read();
      shared_.handover.read[staged_at(kPart, step)].arrive();
    });
  }
  /// A part's sums so far, for all warps, once their place is free.
  template <int kPart>
  TILEWISE_INLINE void fetch(int32_t step, const float* from) {
    constexpr int32_t kBytes = 16 * Parts::cols(kPart) * static_cast<int32_t>(sizeof(float));
    const auto place = ring_place<Parts::kStaged>((run_.steps + static_cast<uint32_t>(step)) * Parts::kCount + kPart);
    auto& handover = shared_.handover;
    handover.read[place.stage].wait(place.parity ^ 1);
    handover.fetched[place.stage].arrive_and_expect(C.kDqWarps * kBytes);
    TILEWISE_NO_UNROLL
    for (int warp = 0; warp < C.kDqWarps; ++warp, from += 16 * C.head_dim) {
      Machine::copy_run(handover.dq[warp][place.stage], from, kBytes, handover.fetched[place.stage].state());
    }
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
      send_sums<Machine>(to, shared_.handover.dq[warp][staged], kBytes, begins_sums);
    }
    Machine::commit_stores();
  }

  const BwdParamsOf<C>& p_;
  Shared& shared_;
  const BwdWork& work_;
  const BwdRun& run_;
  const int32_t index_;
  BwdTurns<Machine, C> turns_;
};

}  // namespace tilewise::device
