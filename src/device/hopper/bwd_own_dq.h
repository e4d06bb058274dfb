// dQ = dS K by the warpgroups that compute, each half of its columns, where dk and dv of wide heads leave no registers
// for a warpgroup beside them. The sums lie where S and P were, and leave for dq_accum by the copy engine.
#pragma once

#include "device/hopper/bwd_shared.h"
#include "device/hopper/bwd_work.h"
#include "device/hopper/matrix_descriptor.h"
#include "device/hopper/warpgroup.h"
#include "device/tile/registers.h"

namespace tilewise::device {

/// A tile's sums are staged at the end of its step and sent in the next one, behind the fence that dS has there: each
/// fence takes some 500 cycles, for which nothing else of the warpgroup goes on.
template <class Ops, HopperBwdConfig C>
class BwdOwnDq {
  using Machine = typename Ops::Machine;
  using Shared = HopperBwdShared<Machine, C>;
  using Keys = typename Shared::KeyTile;
  /// Of three chunks of 64 columns each warpgroup has an outer one and half of the inner one.
  static constexpr int kOuter = Keys::kChunkColumns, kInner = kOuter / 2, kCols = kOuter + kInner;

 public:
  TILEWISE_INLINE BwdOwnDq(const HopperBwdParams& params, const BwdWork& work, int warpgroup, int thread)
      : p_(params),
        warpgroup_(warpgroup),
        warp_(uniform<Machine>(thread / 32 % 4)),
        lane_(thread % 32),
        head_(work.batch * params.shape.num_heads_q + work.query_head),
        to_(params.dq_accum + head_ * params.dq_accum_a_head +
            static_cast<int64_t>(work.queries.begin) * C.tile_floats() + warp_ * (16 * C.head_dim)) {
    static_assert(C.head_dim == C.kConsumers * kCols && C.block_m == 64 && !C.ordered);
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
    if (lane_ == 0) Machine::wait_stores_read();  // what was staged here before has left
    Machine::wave_sync();
    float* const staged = staged_at(shared) + 4 * lane_;
    TILEWISE_UNROLL
    for (int c = 0; c < dQ.kColTiles; ++c) {
      const Sm80Accumulator& x = dQ.tile[0][c];
      Machine::store_shared(staged + c * 128, FloatRun<4>{{x[0], x[1], x[2], x[3]}});
    }
    waits_ = true;
  }
  /// Sends what is staged, if anything, behind a fence of all lanes.
  TILEWISE_INLINE void send(Shared& shared) {
    if (!waits_) return;
    if (lane_ == 0) {
      constexpr int32_t kFloat = static_cast<int32_t>(sizeof(float));
      const float* const staged = staged_at(shared);
      Machine::add_run(to_ + 16 * 2 * kOuter * warpgroup_, staged, 16 * kOuter * kFloat);
      Machine::add_run(to_ + 16 * (kOuter + kInner * warpgroup_), staged + 16 * kOuter, 16 * kInner * kFloat);
      Machine::commit_stores();
    }
    to_ += C.tile_floats();
  }
  /// What is left behind the last tile of queries.
  TILEWISE_INLINE void finish(Shared& shared) {
    Machine::fence_shared_writes();
    Machine::wave_sync();
    send(shared);
    if constexpr (C.rounds) {
      if (lane_ == 0) Machine::wait_stores(), Machine::release_count(p_.turns + head_ * p_.turns_a_head);
    }
  }

 private:
  /// The halves of a warpgroup's columns lie as far apart as the descriptor says.
  TILEWISE_INLINE void issue(Sm80Accumulator (&dQ)[kCols / 8], Shared& shared, uint32_t stage) const {
    // Found anew: descriptors of all steps would leave the loop, for more uniform registers than there are.
    const int32_t index = Machine::agreed(Machine::not_hoisted(warpgroup_));
    const auto dS = MatrixDescriptor::of<Machine>(&shared.dS[stage], Shared::ScoreTile::kChunkBytes);
    const auto K = MatrixDescriptor::of<Machine>(shared.keys[0].chunk(index),
                                                 index == 0 ? 2 * Keys::kChunkBytes : Keys::kChunkBytes + 2 * kInner);
    Machine::wgmma_fence();
    TILEWISE_UNROLL
    for (int k = 0; k < C.block_n() / 16; ++k) {
      constexpr int kStepBytes = 16 * kChunkRowBytes;
      Machine::template wgmma<C.k_type, kAcrossDepth, kAcrossDepth>(dQ, dS.advanced(k * kStepBytes),
                                                                    K.advanced(k * kStepBytes), k > 0);
    }
    Machine::wgmma_commit();
  }
  TILEWISE_INLINE float* staged_at(Shared& shared) const { return shared.handover.dq[4 * warpgroup_ + warp_]; }

  const HopperBwdParams& p_;
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
