// The consumer warpgroups of the backward kernel for wide heads: both have the block's 64 keys. One multiplies S and
// sums up dV, the other dP and dK. P goes from the one to the other through the place where dS will lie.
#pragma once

#include "device/hopper/bwd_epilogue.h"
#include "device/hopper/bwd_group.h"
#include "device/hopper/bwd_products.h"
#include "device/hopper/bwd_scheduler.h"
#include "device/hopper/bwd_scores.h"
#include "device/hopper/bwd_visit.h"

namespace tilewise::device {

enum class BwdRole { sums_dv, sums_dk };

template <class Ops, auto C, BwdRole kRole>
class BwdWide {
  using Machine = typename Ops::Machine;
  using Shared = HopperBwdShared<Machine, C>;
  using Scores = BwdScores<Ops, C>;
  using Products = BwdProducts<Machine, C>;
  static constexpr bool kSumsDv = kRole == BwdRole::sums_dv;
  static constexpr int kCols = kSumsDv ? C.head_dim_v : C.head_dim;
  /// Weights go on as they are before dropout; with softcap what goes on is not what is dropped.
  static constexpr bool kHandsFirst = C.dropout && !C.softcap;

 public:
  using Sums = Fragment<Ops, 16, kCols>;

  TILEWISE_INLINE BwdWide(const BwdParamsOf<C>& params, Shared& shared, const BwdWork& work, const BwdRun& run,
                          int thread, Sums& sums)
      : p_(params),
        shared_(shared),
        run_(run),
        lane_(thread % 32),
        warp_(thread / 32 % 4),
        seen_{uniform<Machine>(work.queries.begin), uniform<Machine>(work.queries.end),
              uniform<Machine>(work.queries.full_begin), uniform<Machine>(work.queries.full_end)},
        tile_place_(ring_place<C.stages>(run.steps)),
        score_place_(ring_place<C.score_stages()>(run.steps)),
        scores_(params, work, 0, thread),
        hiding_(params, work, 0),
        sums_(sums),
        ends_keys_(work.template ends_keys<C>(params)),
        begins_keys_(work.begins_keys()) {}

  TILEWISE_INLINE void run() {
    if (seen_.count() == 0) return clear_gradient();
    if (begins_keys_) {
      sums_.clear();
      (kSumsDv ? shared_.keys_full[0] : shared_.values_full).wait(run_.seen % 2);
    }
    if constexpr (C.persistent) {
      visit_head();
      if (!ends_keys_) return;
      if constexpr (!kSumsDv) arrive_as_warp(shared_.values_free, lane_);
    } else {
      TILEWISE_NO_UNROLL
      for (heads_left_ = p_.group; heads_left_ > 0; --heads_left_) visit_head();
    }
    store_gradient();
  }

 private:
  /// By way of the last queries, or of their dO, whose stage is kept until TMA has read it: so K's and V's
  /// places are free for the next tile of keys as soon as products have read them.
  TILEWISE_INLINE void store_gradient() {
    const BwdWork work = work_at_hand<Machine, C>(p_, shared_, run_);
    const BwdEpilogue<Ops, C> store(p_, work, 0, lane_);
    const BwdGroup<Ops, C> group = group_of(work);
    group.await(shared_, run_.seen);
    kSumsDv ? group.join_dv(sums_) : group.join_dk(sums_);
    group.hand_on(shared_);
    const uint32_t stage = tile_place_.before().stage;
    shared_.handover.last_read.wait(run_.seen % 2);
    if (!group.ends()) {
      arrive_as_warp(shared_.tile_ring.empty[stage], lane_);
      return;
    }
    if constexpr (kSumsDv) {
      store.store_dv(shared_.douts[stage], sums_);
    } else {
      store.store_dk(shared_.queries[stage], sums_);
    }
    if (leads_warpgroup<Machine>()) Machine::wait_stores_read();
    if constexpr (C.lengths) Machine::fence_shared_writes();  // rows may have left by loads
    arrive_as_warp(shared_.tile_ring.empty[stage], lane_);
  }
  TILEWISE_INLINE BwdGroup<Ops, C> group_of(const BwdWork& work) const {
    return {p_, work, (kSumsDv ? 0 : C.kRows / 16) + warp_, warp_, lane_};
  }
  /// Of keys that no query sees.
  TILEWISE_INLINE void clear_gradient() {
    const BwdWork work = work_at_hand<Machine, C>(p_, shared_, run_);
    if (!ends_keys_ || !group_of(work).ends()) return;
    const BwdEpilogue<Ops, C> store(p_, work, 0, lane_);
    if constexpr (C.split) {
      sums_.clear();
      kSumsDv ? store.store_dv(shared_.values, sums_) : store.store_dk(shared_.keys[0], sums_);
    } else if constexpr (kSumsDv) {
      store.clear_dv();
    } else {
      store.clear_dk();
    }
  }

  TILEWISE_INLINE void visit_head() {
    if constexpr (kSumsDv) scores_.enter_head(p_.score);
    tile_place_.wait_full(shared_.tile_ring);
    if constexpr (kSumsDv) {
      scores_.read_lse(shared_.lse2[tile_place_.stage]);
      scores_.read_marks(shared_.delta[tile_place_.stage]);
    }
    read_kept();
    static_assert(!kLoopsLarge<C>);
    visit_tiles<C>(
        seen_, hiding_, false, [] { return false; },
        [&](auto kind, int32_t tile, bool /*first*/, bool more) {
          constexpr bool kMasked = decltype(kind)::value != kWholeTile;
          if constexpr (kSumsDv) {
            weigh_tile<kMasked>(tile, more);
          } else {
            derive_tile<kMasked>(tile, more);
          }
        });
  }

  template <bool kMasked>
  TILEWISE_INLINE void weigh_tile(int32_t tile, bool more) {
    const auto stage = tile_place_.stage;
    Products::template issue_scores<C.k_type, C.head_dim, true>(scores_.S, shared_.keys[0], 0, shared_.queries[stage],
                                                                false);
    RingPlace<C.stages> next = tile_place_;
    next.advance();
    const bool landed = !more || next.test_full(shared_.tile_ring), room = score_place_.test_empty(shared_.score_ring);
    const bool has_large = scores_.has_large();
    if constexpr (kMasked) scores_.find_hidden(p_, tile);
    Machine::template wgmma_wait<0>();
    pin_registers<Machine>(scores_.S);
    if constexpr (C.tells_large()) {
      if (has_large) scores_.scale_large(p_, shared_.delta[stage]);
    }
    scores_.template weigh<kMasked>(p_, tile, shared_.bias_tile(stage));
    if constexpr (kHandsFirst) hand_weights(room);
    if constexpr (C.dropout) scores_.drop();
    Products::template issue_sums<C.out_type>(sums_, scores_.P, shared_.douts[stage]);  // dV += P^T dO
    if constexpr (C.softcap) scores_.keep_factors();
    if constexpr (!kHandsFirst) hand_weights(room);
    if (!landed) next.wait_full(shared_.tile_ring);
    if (more) {
      scores_.read_lse(shared_.lse2[next.stage]);
      scores_.read_marks(shared_.delta[next.stage]);
      read_kept();
    } else {
      scores_.forget();
    }
    Machine::template wgmma_wait<0>();
    scores_.pin_operands();
    // TMA overwrites statistics that loads have read. The other warpgroup has its fence for dS.
    Machine::fence_shared_writes();
    leave_queries(more);
  }

  template <bool kMasked>
  TILEWISE_INLINE void derive_tile(int32_t tile, bool more) {
    const auto stage = tile_place_.stage;
    Products::template issue_scores<C.v_type, C.head_dim_v, false>(scores_.S, shared_.values, 0, shared_.douts[stage],
                                                                   false);
    RingPlace<C.stages> next = tile_place_;
    next.advance();
    const bool landed = !more || next.test_full(shared_.tile_ring);
    scores_.read_delta(shared_.delta[stage]);
    Machine::template wgmma_wait<0>();
    pin_registers<Machine>(scores_.S);
    take_weights();
    if constexpr (kMasked) scores_.find_visible(p_, tile), scores_.hide_behind_queries(tile);
    scores_.template derive<kMasked>();
    Products::template issue_sums<C.q_type>(sums_, scores_.dS, shared_.queries[stage]);  // dK += dS^T Q
    scores_.store(shared_.dS[score_place_.stage]);
    Machine::fence_shared_writes();
    arrive_as_lanes(shared_.score_ring.full[score_place_.stage]);
    score_place_.advance();
    if (!landed) next.wait_full(shared_.tile_ring);
    if (more) {
      read_kept();
    } else {
      scores_.forget();
    }
    Machine::template wgmma_wait<0>();
    scores_.pin_operands();
    leave_queries(more);
  }

  /// As the other kernel's, by both warpgroups: the one drops weights, the other what comes of them.
  TILEWISE_INLINE void read_kept() {
    if constexpr (C.dropout) {
      draw_place_.wait_full(shared_.draw_ring);
      scores_.read_kept(shared_.draws);
      arrive_as_lanes(shared_.draw_ring.empty[0]);
      draw_place_.advance();
    }
  }

  // ------------------------------------------------------------------ weights
  /// Each lane's weights, with softcap times its derivative, lie where its warp's rows of dS will: 16 bytes of every
  /// lane side by side.
  TILEWISE_INLINE uint8_t* weights_place(int k) {
    constexpr int kWarpBytes = 16 * kChunkRowBytes, kStepBytes = Machine::kLanes * 16;
    static_assert(C.block_m == 64, "a warp's rows of dS are one chunk, and its weights as long");
    return shared_.dS[score_place_.stage].bytes + warp_ * kWarpBytes + k * kStepBytes + lane_ * 16;
  }
  TILEWISE_INLINE void hand_weights(bool room) {
    if (!room) score_place_.wait_empty(shared_.score_ring);
    TILEWISE_UNROLL
    for (int k = 0; k < C.block_m / 16; ++k) {
      const auto& word = scores_.factors()[k].word;
      Machine::store_shared(weights_place(k), Chunk{{word[0], word[1], word[2], word[3]}});
    }
    arrive_as_lanes(shared_.handover.weights_full[score_place_.stage][warp_]);
    score_place_.advance();
  }
  TILEWISE_INLINE void take_weights() {
    shared_.handover.weights_full[score_place_.stage][warp_].wait(score_place_.parity);
    TILEWISE_UNROLL
    for (int k = 0; k < C.block_m / 16; ++k) {
      const Chunk chunk = Machine::template load_shared<Chunk>(weights_place(k));
      TILEWISE_UNROLL
      for (int i = 0; i < 4; ++i) scores_.factors()[k].word[i] = chunk.word[i];
    }
    Machine::wave_sync();  // all lanes have theirs before dS is written over them
  }

  /// The last stage is kept, since dk and dv leave by it. A barrier is chosen there, lest a branch make the compiler
  /// leave the uniform registers (80 instructions more in each step).
  TILEWISE_INLINE void leave_queries(bool more) {
    const bool kept = !more && (C.persistent ? ends_keys_ : heads_left_ == 1);
    arrive_as_warp(kept ? shared_.handover.last_read : shared_.tile_ring.empty[tile_place_.stage], lane_);
    tile_place_.advance();
  }

  const BwdParamsOf<C>& p_;
  Shared& shared_;
  const BwdRun& run_;
  const int lane_, warp_;
  const QueryTiles seen_;
  int32_t heads_left_ = 1;  // of the group, the one at hand among them
  RingPlace<C.stages> tile_place_;
  RingPlace<C.score_stages()> score_place_;
  RingPlace<1> draw_place_;
  Scores scores_;
  HidingTiles<Machine, C> hiding_;
  Sums& sums_;
  const bool ends_keys_, begins_keys_;
};

}  // namespace tilewise::device
