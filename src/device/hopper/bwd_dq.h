// The warpgroup of the backward kernel that multiplies dQ = dS K, tile of queries by tile, and adds it to dq_accum: by
// TMA, from shared memory, while its first warp loads what the others compute with; or where shared memory
// has no room for that, from registers. Where couriers add it for them, see bwd_courier.h.
#pragma once

#include "device/hopper/bwd_dq_sums.h"
#include "device/hopper/bwd_loader.h"
#include "device/hopper/bwd_turns.h"
#include "device/sm90/warpgroup.h"
#include "device/tile/registers.h"

namespace tilewise::device {

/// The products, and where they go.
template <class Ops, auto C>
class BwdDqProducts {
 protected:
  using Machine = typename Ops::Machine;
  using Shared = HopperBwdShared<Machine, C>;
  using Parts = DqParts<C>;

  TILEWISE_INLINE BwdDqProducts(const BwdParamsOf<C>& params, Shared& shared, const BwdWork& work, const BwdRun& run,
                                int thread)
      : p_(params),
        shared_(shared),
        work_(work),
        lane_(thread % 32),
        warp_(uniform<Machine>(thread / 32)),
        key_stage_(run.template key_place<C>().stage),
        score_place_(ring_place<C.score_stages()>(run.steps)),
        tiles_left_(work.queries.count()),
        to_(first_sums<C>(params, work) + warp_ * (16 * C.head_dim)),
        turns_(params, work, warp_) {}

  TILEWISE_INLINE void wait_keys(const BwdRun& run) {
    if (!work_.begins_keys()) return;
    shared_.keys_full[key_stage_].wait(run.template key_place<C>().parity);
  }

  /// From the last part of a tile to the first one of the next, perhaps of the next head.
  TILEWISE_INLINE void enter_next_tile() {
    to_ += kTileFloats - Parts::place(Parts::kCount - 1);
    if constexpr (C.persistent && !C.ordered) return;
    const bool enters_head = --tiles_left_ == 0 && !C.persistent;
    if (enters_head) {
      tiles_left_ = Machine::not_hoisted(work_.queries.count());
      to_ += p_.dq_accum_a_head - static_cast<int64_t>(tiles_left_) * kTileFloats;
    }
    if constexpr (C.ordered) turns_.advance(enters_head);
  }

  template <int kPart, int kTiles>
  TILEWISE_INLINE void issue(Sm80Accumulator (&dQ)[kTiles]) {
    using Scores = typename Shared::ScoreTile;
    const auto dS = MatrixDescriptor::of<Machine>(shared_.dS[score_place_.stage].chunk(Parts::row_chunk(kPart)),
                                                  Scores::kChunkBytes);
    const auto K = MatrixDescriptor::of<Machine>(shared_.keys[key_stage_].chunk(Parts::first_col(kPart) / 64),
                                                 Shared::KeyTile::kChunkBytes);
    issue_dq<Machine, C>(dQ, dS, K);
  }

  /// A part's sums as the lanes hold them, in one of the warp's places in shared memory.
  template <class Sums>
  TILEWISE_INLINE void stage(const Sums& dQ, int place) {
    stage_sums<Machine>(shared_.handover.dq[warp_][place], lane_, dQ);
  }

  /// Of sums that have no order, this warp's of the tile of keys, all of which have arrived: see bwd_rounder.h.
  TILEWISE_INLINE void count_sums() const {
    Machine::release_count(p_.turns + (work_.batch * p_.shape.num_heads_q + work_.query_head) * p_.turns_a_head);
  }

  /// Once a tile's last products are done; of a block's last tile K has been read too. In front of their sums, behind
  /// which an arrival would wait.
  TILEWISE_INLINE void release_operands(bool of_last_tile) {
    if (of_last_tile) arrive_as_warp(shared_.keys_done[key_stage_], lane_);
    release_scores();
  }
  TILEWISE_INLINE void release_scores() {
    arrive_as_warp(shared_.score_ring.empty[score_place_.stage], lane_);
    score_place_.advance();
  }

 private:
  static constexpr int32_t kTileFloats = C.tile_floats();

 protected:
  const BwdParamsOf<C>& p_;
  Shared& shared_;
  const BwdWork& work_;
  const int lane_, warp_;
  const uint32_t key_stage_;
  RingPlace<C.score_stages()> score_place_;
  int32_t tiles_left_;  // of a head, the one at hand among them
  float* to_;           // where this warp's sums of the part at hand go
  BwdTurns<Machine, C> turns_;
};

template <class Ops, auto C>
class BwdDqSums : BwdDqProducts<Ops, C> {
  using Base = BwdDqProducts<Ops, C>;
  using Base::p_, Base::shared_, Base::lane_, Base::warp_, Base::key_stage_, Base::score_place_, Base::to_,
      Base::turns_;
  using typename Base::Machine, typename Base::Shared, typename Base::Parts;
  using Loader = BwdLoader<Machine, C>;

 public:
  TILEWISE_INLINE BwdDqSums(const BwdParamsOf<C>& params, Shared& shared, const BwdWork& work, BwdRun& run, int thread)
      : Base(params, shared, work, run, thread), run_(run), loader_(params, shared, work, run, thread == 0) {}

  /// publish(): tells the block its next tile of keys, once what this one needs first is on its way.
  template <class Publish>
  TILEWISE_INLINE void run(const Publish& publish) {
    const int32_t steps = this->work_.steps();
    if (C.ordered && warp_ != 0) wait_for_preprocess<Machine, C>();  // before it looks at a turn
    // All warps have the number of this tile of keys: a later one may take its place.
    if constexpr (C.persistent) Machine::named_barrier_sync(kKeyRows, kWarpgroupThreads);
    if (warp_ == 0 && (steps > 0 || C.persistent)) {
      loader_.begin();
      if constexpr (C.persistent) publish();
      loader_.finish_keys();
    }
    Machine::wave_sync();
    const int32_t calls_next = maximum(steps + 1 - C.stages, 0);  // the step that has no tile of its own to load
    TILEWISE_NO_UNROLL
    for (int32_t step = 0; step < steps; ++step) {
      // The stage of the tile before is on its way to be free.
      if (warp_ == 0 && step > 0 && loader_.has_more()) loader_.load_queries();
      if constexpr (Loader::kEarly) {
        if (warp_ == 0 && step == calls_next) loader_.load_next_queries();
      }
      Machine::wave_sync();
      if (step == 0) this->wait_keys(run_);
      if (!C.ordered || !begin_turn()) score_place_.wait_full(shared_.score_ring);
      for_each_index<0, Parts::kCount>([&](auto part) { add_part<decltype(part)::value>(step); });
      if constexpr (C.ordered) {
        send(Parts::kCount - 1, step);  // at once: other blocks wait for it
        this->enter_next_tile();
      }
    }
    if (steps == 0) return;
    if (this->work_.template ends_keys<C>(p_)) arrive_as_warp(shared_.keys_done[key_stage_], lane_);
    if constexpr (Loader::kEarly) {
      if (warp_ == 0) loader_.load_next_keys();
      Machine::wave_sync();
    }
    if constexpr (C.ordered) {
      if (lane_ == 0) hand_on();
    } else {
      send(Parts::kCount - 1, steps - 1);
      if constexpr (C.rounds) {
        if (lane_ == 0) Machine::wait_stores(), this->count_sums();
      }
    }
    // Where a tile of queries has one part, the next tile of keys begins with the first place anew.
    if (Parts::kCount == 1 && C.persistent && lane_ == 0) Machine::wait_stores_read();
  }

 private:
  /// A part is fenced and sent behind the products of the next one, which would otherwise wait for that.
  template <int kPart>
  TILEWISE_INLINE void add_part(int32_t step) {
    constexpr int kLast = (kPart + Parts::kCount - 1) % Parts::kCount;
    Fragment<Ops, 16, Parts::cols(kPart)> dQ;
    this->template issue<kPart>(dQ.tile[0]);
    if (kPart > 0 || (step > 0 && !C.ordered)) send(kLast, kPart > 0 ? step : step - 1);
    if constexpr (kPart > 0) {
      to_ += Parts::place(kPart) - Parts::place(kPart - 1);
    } else if (step > 0 && !C.ordered) {
      this->enter_next_tile();
    }
    Machine::template wgmma_wait<0>();
    pin_registers<Machine>(dQ);
    if (kPart + 1 == Parts::kCount) this->release_scores();
    if (lane_ == 0) Machine::template wait_stores_read<Parts::kStaged - 1>();  // what was staged here before has left
    Machine::wave_sync();
    this->stage(dQ, Parts::staged(kPart, step));
  }

  /// What this warp has staged last.
  TILEWISE_INLINE void send(int part, int32_t step) {
    Machine::fence_shared_writes();
    Machine::wave_sync();
    if (lane_ != 0) return;
    if (C.ordered && part == 0) take_turn();
    const float* const sums = shared_.handover.dq[warp_][Parts::staged(part, step)];
    const int32_t bytes = 16 * Parts::cols(part) * static_cast<int32_t>(sizeof(float));
    send_sums<Machine>(to_, sums, bytes, C.ordered && turns_.begins_sums(this->tiles_left_));
    Machine::commit_stores();
  }

  /// A look at the turn takes a microsecond, and so do sums until they have arrived. Both run beside other work: one
  /// looks before a tile's scores are waited for, and hands the tile before on meanwhile, or else beside the tile's
  /// last products, before its own sums are sent, for which the release would wait too.
  /// Returns whether the scores were there.
  TILEWISE_INLINE bool begin_turn() {
    turns_.ask(this->tiles_left_);
    const bool landed = score_place_.test_full(shared_.score_ring);
    if (!landed && lane_ == 0 && turns_.owes()) hand_on();
    return landed;
  }
  /// By one lane.
  TILEWISE_INLINE void take_turn() {
    if (turns_.owes()) hand_on();
    if (!turns_.has_come()) turns_.await();
  }
  TILEWISE_INLINE void hand_on() {
    Machine::wait_stores();
    turns_.hand_on();
  }

  BwdRun& run_;
  Loader loader_;
};

template <class Ops, auto C>
class BwdDqAdds : BwdDqProducts<Ops, C> {
  using Base = BwdDqProducts<Ops, C>;
  using Base::shared_, Base::lane_, Base::to_, Base::turns_;
  using typename Base::Machine, typename Base::Shared, typename Base::Parts;

 public:
  TILEWISE_INLINE BwdDqAdds(const BwdParamsOf<C>& params, Shared& shared, const BwdWork& work, const BwdRun& run,
                            int thread)
      : Base(params, shared, work, run, thread), run_(run) {}

  TILEWISE_INLINE void run() {
    const int32_t steps = this->work_.steps();
    const bool ends_keys = this->work_.template ends_keys<C>(this->p_);
    if (steps == 0) return;
    if constexpr (C.ordered) wait_for_preprocess<Machine, C>();  // before it looks at a turn
    to_ += 4 * lane_;
    this->wait_keys(run_);
    TILEWISE_NO_UNROLL
    for (int32_t step = 0; step < steps; ++step) {
      if constexpr (C.ordered) turns_.ask(this->tiles_left_);
      this->score_place_.wait_full(shared_.score_ring);
      for_each_index<0, Parts::kCount>(
          [&](auto part) { add_part<decltype(part)::value>(step + 1 == steps && ends_keys); });
      this->enter_next_tile();
    }
    if constexpr (C.ordered || C.rounds) Machine::wave_sync();
    if constexpr (C.ordered) {
      if (lane_ == 0) turns_.hand_on();
    } else if constexpr (C.rounds) {
      if (lane_ == 0) this->count_sums();
    }
  }

 private:
  template <int kPart>
  TILEWISE_INLINE void add_part(bool of_last_tile) {
    constexpr int kTiles = Parts::cols(kPart) / 8;
    this->template issue<kPart>(reinterpret_cast<Sm80Accumulator(&)[kTiles]>(dQ_.tile[0][0]));
    if constexpr (kPart > 0) to_ += Parts::place(kPart) - Parts::place(kPart - 1);
    if (C.ordered && kPart == 0) take_turn();
    Machine::template wgmma_wait<0>();
    pin_registers<Machine>(dQ_);
    if constexpr (kPart + 1 == Parts::kCount) this->release_operands(C.persistent && of_last_tile);
    if (C.ordered && turns_.begins_sums(this->tiles_left_)) {
      TILEWISE_UNROLL
      for (int c = 0; c < kTiles; ++c) {
        const Sm80Accumulator& x = dQ_.tile[0][c];
        Machine::store_global(reinterpret_cast<FloatRun<4>*>(to_ + c * 128), FloatRun<4>{{x[0], x[1], x[2], x[3]}});
      }
    } else {
      TILEWISE_UNROLL
      for (int c = 0; c < kTiles; ++c) Machine::add_global(to_ + c * 128, dQ_.tile[0][c].value);
    }
    pin_registers<Machine>(dQ_);  // the next part's products begin behind these
  }

  /// Beside a tile's first products. Who hands on has synchronised with the others' additions, so that its release
  /// waits for them too.
  TILEWISE_INLINE void take_turn() {
    Machine::wave_sync();
    if (lane_ == 0) {
      if (turns_.owes()) turns_.hand_on();
      if (!turns_.has_come()) turns_.await();
    }
    Machine::wave_sync();
  }

  const BwdRun& run_;
  Fragment<Ops, 16, Parts::kMostCols> dQ_;  // one for all parts: else the compiler takes registers for each
};

}  // namespace tilewise::device
