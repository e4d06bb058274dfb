// dQ = dS K by the warpgroups that compute, each half of its columns, where dk and dv of wide heads leave no registers
// for a warpgroup beside them. The sums lie where S and P were, and leave for dq_accum by TMA.
#pragma once

#include "device/hopper/bwd_dq_places.h"
#include "device/hopper/bwd_dq_sums.h"
#include "device/hopper/bwd_scheduler.h"
#include "device/sm90/warpgroup.h"
#include "device/tile/registers.h"

namespace tilewise::device {

/// A tile's sums are staged at the end of its step and sent in the next one, behind the fence that dS has there: each
/// fence takes some 500 cycles, for which nothing else of the warpgroup goes on.
template <class Ops, auto C>
class BwdOwnDq {
  using Machine = typename Ops::Machine;
  using Shared = HopperBwdShared<Machine, C>;
  using Keys = typename Shared::KeyTile;
  using Columns = DqHalves;
  static constexpr int kCols = Columns::kCount;

 public:
  TILEWISE_INLINE BwdOwnDq(const BwdParamsOf<C>& params, const BwdWork& work, BwdRun& run, int warpgroup, int thread)
      : p_(params),
        run_(run),
        left_(work.queries.count()),
        ended_(work.tiles_ended),
        behind_(work.tiles_behind),
        warpgroup_(warpgroup),
        warp_(uniform<Machine>(thread / 32 % 4)),
        lane_(thread % 32),
        head_(work.batch * params.shape.num_heads_q + work.query_head),
        to_(first_sums<C>(params, work) + (4 * warpgroup + warp_) * Columns::kWarpFloats) {
    static_assert(Keys::kChunkColumns == Columns::kOuter && C.block_m == 64);
    static_assert(C.head_dim == C.kConsumers * kCols);
  }

  /// Multiplies a tile of queries, whose dS lies at `place`, and stages the sums. No other product may be on its way:
  /// there are no registers for its operands.
  TILEWISE_INLINE void add(Shared& shared, const RingPlace<C.score_stages()>& place) {
    place.wait_full(shared.score_ring);
    Fragment<Ops, 16, kCols> dQ;
    issue(dQ.tile[0], shared, place.stage);
    Machine::template wgmma_wait<0>();
    pin_registers<Machine>(dQ);
    arrive_as_warp(shared.score_ring.empty[place.stage], lane_);
    if constexpr (C.ordered) {
      shared.handover.read.wait(place.parity ^ 1);
      if (C.last_rounds && left_ <= ended_) return finish_tile(shared, dQ, place.parity);
      --left_;
    } else {
      if (lane_ == 0) Machine::wait_stores_read();  // what was staged here before has left
      Machine::wave_sync();
    }
    stage_sums<Machine>(staged_at(shared), lane_, dQ);
    waits_ = true;
  }
  /// Sends what is staged, if anything, behind a fence of all lanes.
  TILEWISE_INLINE void send(Shared& shared) {
    if (!waits_) return;
    if (lane_ == 0) {
      Machine::add_run(to_, staged_at(shared), Columns::kWarpFloats * static_cast<int32_t>(sizeof(float)));
      Machine::commit_stores();
    }
    to_ += C.tile_floats();
  }
  /// Or leaves it to a courier, by a fence of its own, beside the next tile's scores: a courier needs most of a step to
  /// have it read. parity: of its tile among the block's steps.
  TILEWISE_INLINE void hand_over(Shared& shared, uint32_t parity) {
    Machine::fence_shared_writes();
    if (waits_) tell_courier(shared, parity);
    waits_ = false;
  }
  /// What is left behind the last tile of queries.
  TILEWISE_INLINE void finish(Shared& shared, uint32_t parity) {
    if constexpr (C.ordered) {
      hand_over(shared, parity);
    } else {
      Machine::fence_shared_writes();
      Machine::wave_sync();
      send(shared);
      if constexpr (C.rounds) {
        if (lane_ == 0) Machine::wait_stores(), Machine::release_count(p_.turns + head_ * p_.turns_a_head);
      }
    }
  }

 private:
  TILEWISE_INLINE void tell_courier(Shared& shared, uint32_t parity) const {
    static_assert(C.kCouriers == 2);
    auto& staged = shared.handover.staged[parity];
    if constexpr (C.last_rounds) {
      arrive_as_lanes(staged);  // each of which may have read what was fetched
    } else {
      arrive_as_warp(staged, lane_);
    }
  }

  // ------------------------------------------------------------------ last sums
  /// A tile of queries to which no tile of keys adds after this one.
  template <class Sums>
  TILEWISE_INLINE void finish_tile(Shared& shared, Sums& dQ, uint32_t parity) {
    if (left_ <= behind_) {  // a courier has asked for those so far
      shared.handover.fetched.wait(run_.fetched);
      run_.fetched ^= 1;
      add_staged<Machine>(dQ, staged_at(shared), lane_);
      Machine::fence_shared_writes();  // reads, too, are to be done before TMA writes there
    }
    tell_courier(shared, parity);
    const BwdWork work = work_at_hand<Machine, C>(p_, shared, run_);  // not kept in registers through the steps
    store_rows(dQ, work, work.template query_tile<C>(work.queries.count() - left_) * C.block_m);
    --left_;
  }
  /// first: the tile's first query. A lane gets 8 columns of each of its two rows.
  template <class Sums>
  TILEWISE_INLINE void store_rows(const Sums& dQ, const BwdWork& work, int32_t first) const {
    const float* const lse2 = p_.lse2 + head_ * p_.rows_a_head + first;
    TILEWISE_UNROLL
    for (int slot = 0; slot < 2; ++slot) {
      const int32_t of_tile = 16 * warp_ + lane_ / 4 + 8 * slot, row = first + of_tile;
      // Hidden keys of NaN, times 0, are not to reach a row that sees nothing.
      const bool sees = Machine::load_global(lse2 + statistic_place(of_tile)) != kInfinity;
      auto* const to = dq_row<C>(p_, work, row);
      TILEWISE_UNROLL
      for (int c = 0; c < dQ.kColTiles; c += 4) {
        Chunk chunk;
        TILEWISE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const Sm80Accumulator& x = dQ.tile[0][c + i];
          chunk.word[i] = sees ? Machine::template pack<C.q_type>(x[2 * slot] * p_.score.softmax_scale,
                                                                  x[2 * slot + 1] * p_.score.softmax_scale)
                               : 0;
        }
        transpose_quad<Machine>(chunk.word);
        const int32_t col = Columns::column(c, warpgroup_) + 8 * (lane_ % 4);
        if (row < work.rows_q && (C.exact_dims || col < p_.shape.head_dim)) {
          Machine::store_global(reinterpret_cast<Chunk*>(to + col), chunk);
        }
      }
    }
  }

  /// The halves of a warpgroup's columns lie as far apart as the descriptor says.
  TILEWISE_INLINE void issue(Sm80Accumulator (&dQ)[kCols / 8], Shared& shared, uint32_t stage) const {
    // Found anew: descriptors of all steps would leave the loop, for more uniform registers than there are.
    const int32_t index = Machine::agreed(Machine::not_hoisted(warpgroup_));
    const auto dS = MatrixDescriptor::of<Machine>(&shared.dS[stage], Shared::ScoreTile::kChunkBytes);
    const auto K = MatrixDescriptor::of<Machine>(
        shared.keys[0].chunk(index), index == 0 ? 2 * Keys::kChunkBytes : Keys::kChunkBytes + 2 * Columns::kInner);
    issue_dq<Machine, C>(dQ, dS, K);
  }
  TILEWISE_INLINE float* staged_at(Shared& shared) const { return shared.handover.dq[4 * warpgroup_ + warp_]; }

  const BwdParamsOf<C>& p_;
  BwdRun& run_;
  int32_t left_;                  // tiles of queries, the one at hand among them
  const int32_t ended_, behind_;  // see BwdWork
  const int warpgroup_, warp_, lane_;
  const int64_t head_;
  float* to_;           // where this warp's sums of the tile go that is sent next
  bool waits_ = false;  // whether one is staged
};
/// Where a warpgroup of its own does it.
struct BwdNoDq {
  template <class... Any>
  TILEWISE_INLINE explicit BwdNoDq(const Any&... /*unused*/) {}
};

}  // namespace tilewise::device
