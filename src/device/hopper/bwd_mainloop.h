// A consumer warpgroup of the backward kernel: 64 keys, past which tiles of queries stream. Rows are keys: S, P, dP
// and dS are transposed here. dK and dV stay in registers; dS goes to the warpgroup that multiplies dQ.
#pragma once

#include "device/hopper/bwd_epilogue.h"
#include "device/hopper/bwd_group.h"
#include "device/hopper/bwd_own_dq.h"
#include "device/hopper/bwd_products.h"
#include "device/hopper/bwd_scheduler.h"
#include "device/hopper/bwd_scores.h"
#include "device/hopper/bwd_visit.h"

namespace tilewise::device {

/// A lane's sums of a tile of keys.
template <class Ops, auto C>
struct BwdGradients {
  Fragment<Ops, 16, C.head_dim> dK;
  Fragment<Ops, 16, C.head_dim_v> dV;
};

template <class Ops, auto C>
class BwdMainloop {
  using Machine = typename Ops::Machine;
  using Shared = HopperBwdShared<Machine, C>;
  using Scores = BwdScores<Ops, C>;
  using Products = BwdProducts<Machine, C>;
  static constexpr bool kRoomy = C.head_dim <= 96 && C.head_dim_v <= 96,
                        kModified = C.dropout || C.bias_type != kBiasNone || FunctionsOf<C>::kModifies ||
                                    FunctionsOf<C>::kHides;
  static constexpr bool kFactors = Scores::kFactors;
  /// Whether dV is done before dP takes the registers of S, not beside it. With factors (softcap's) P and dS's factors
  /// are two things, for which there are no registers beside dP's where a lane has 128 columns of gradients and
  /// something else is done to scores, a mask already (60 to 280 bytes of spills), or where it has 128 queries.
  template <bool kMasked>
  static constexpr bool kValuesFirst = kFactors && (C.block_m > 64 || (!kRoomy && (kMasked || C.ranged || kModified)));
  /// When a tile's log-sum-exp is read: a tile ahead; beside the products of S with softcap where couriers leave 208
  /// registers, and where dQ's sums need them; once S is there where softcap meets dropout, whose registers are needed
  /// during the products too (100 to 220 bytes of spills).
  static constexpr bool kReadsLate = kFactors && C.dropout, kReadsBeside = C.own_dq || (C.couriers() && kFactors),
                        kReadsAhead = !kReadsLate && !kReadsBeside;
  /// Whether delta is read while dP is multiplied, not once it is there: 3 to 5% less in tiles of 128 queries, slower
  /// in others. Softcap with dropout has no registers for it.
  static constexpr bool kDeltaEarly = !kReadsLate && C.block_m > 64;
  /// Whether registers of statistics serve something else from their last use to the next tile's. It shortens steps,
  /// but not at 128 columns with dropout, or in bf16 without a mask.
  static constexpr bool kForgets = kRoomy || C.own_dq || (!C.dropout && (C.ranged || C.couriers() || C.q_type == kF16));
  /// Whether dV is multiplied behind dK: where dS comes of weights that dV lacks, since there are no registers for
  /// both, and of f16 in tiles of 128 queries, whose dS is made in fp32.
  static constexpr bool kValuesLast = !kFactors && (C.dropout || (C.q_type == kF16 && C.block_m > 64));

 public:
  TILEWISE_INLINE BwdMainloop(const BwdParamsOf<C>& params, Shared& shared, const BwdWork& work, BwdRun& run,
                              int thread, BwdGradients<Ops, C>& sums)
      : p_(params),
        shared_(shared),
        run_(run),
        lane_(thread % 32),
        warpgroup_(uniform<Machine>(thread / kWarpgroupThreads - 1)),
        seen_(seen_tiles(work)),
        before_(work.template from_last<C>() ? work.queries.end - seen_.end : seen_.begin - work.queries.begin),
        after_(work.template from_last<C>() ? seen_.begin - work.queries.begin : work.queries.end - seen_.end),
        from_last_(C.both_ways && uniform<Machine>(work.rises) != 0),
        tile_place_(ring_place<C.stages>(run.steps)),
        score_place_(ring_place<C.score_stages()>(run.steps)),
        draw_place_(ring_place<1>(run.steps)),
        scores_(params, work, warpgroup_, thread),
        hiding_(params, work, warpgroup_),
        own_dq_(params, work, run, warpgroup_, thread),
        dK_(sums.dK),
        dV_(sums.dV) {}

  TILEWISE_INLINE void run(const BwdWork& work) {
    if constexpr (kKeepsPlace) {
      auto& place = shared_.store_places[warpgroup_];
      if (leads_warpgroup<Machine>()) {
        store_number<Machine>(place.k_row, work.k_row);
        store_number<Machine>(place.head, work.head), store_number<Machine>(place.batch, work.batch);
      }
    }
    if (begins_keys()) dK_.clear(), dV_.clear();
    const bool any = before_ + seen_.count() + after_ > 0;
    if (any) {
      const auto keys = run_.template key_place<C>();
      if (begins_keys()) shared_.keys_full[keys.stage].wait(keys.parity);
      if constexpr (C.persistent) {
        begin_scores();
        visit_head();
        if constexpr (C.own_dq) own_dq_.finish(shared_, score_place_.before().parity);
      } else {
        begin_values();
        TILEWISE_NO_UNROLL
        for (int32_t head = p_.group; head > 0; --head) visit_head();
      }
    } else if constexpr (C.persistent) {
      if constexpr (kLeavesFirst) wait_gradients_read();
      begin_values();
    }
    if (!work.template ends_keys<C>(p_)) return;
    const BwdWork stored = work_to_store();
    const BwdEpilogue<Ops, C> store(p_, stored, warpgroup_, lane_);
    if constexpr (C.own_dq) {
      if (!any) return clear_gradients();  // K's place may be the next tile's already
    }
    const int warp = warpgroup_ * (C.kRows / 16) + warp_row<Machine>() / 16;
    const BwdGroup<Ops, C> group(p_, stored, warp, warp, lane_);
    if (any) group.await(shared_, run_.seen), group.join_dv(dV_);
    if (group.ends()) store.store_dv(shared_.values, dV_);
    if (any) {  // and the last dS has been read
      if constexpr (C.own_dq) {
        Machine::named_barrier_sync(kKeysRead, C.kConsumers * kWarpgroupThreads);
      } else {
        const auto keys = run_.template key_place<C>();
        shared_.keys_done[keys.stage].wait(keys.parity);
      }
      group.join_dk(dK_), group.hand_on(shared_);
    }
    if (group.ends()) store.store_dk(shared_.staged_dk(), dK_);
    if constexpr (C.persistent) {
      if (leads_warpgroup<Machine>()) Machine::template wait_stores_read<1>();  // dv's
      free_place(shared_.values_free);
    }
    if constexpr (C.own_dq) {
      if (leads_warpgroup<Machine>()) Machine::wait_stores_read();  // dk's
      free_place(shared_.keys_done[0]);
    }
  }

 private:
  /// Of a tile of keys that no query sees.
  TILEWISE_INLINE void clear_gradients() {
    const BwdWork work = work_at_hand<Machine, C>(p_, shared_, run_);
    const BwdEpilogue<Ops, C> store(p_, work, warpgroup_, lane_);
    const BwdGroup<Ops, C> group(p_, work, 0, 0, lane_);
    if (group.ends()) store.clear_dv(), store.clear_dk();
    free_place(shared_.values_free);
  }
  /// Once a gradient has left from there.
  TILEWISE_INLINE void free_place(Barrier<Machine>& place) const {
    if constexpr (C.lengths) {
      arrive_as_lanes(place);  // each of which may have copied rows of it
    } else {
      arrive_as_warp(place, lane_);
    }
  }

  static constexpr bool kKeepsPlace = C.persistent && !C.lengths && !C.grouped;
  /// Not kept in registers through the steps: found anew, or where only the thread that stores asks, left by it in
  /// shared memory.
  TILEWISE_INLINE BwdWork work_to_store() const {
    if constexpr (!kKeepsPlace) return work_at_hand<Machine, C>(p_, shared_, run_);
    const auto& place = shared_.store_places[warpgroup_];
    BwdWork work{};
    if (leads_warpgroup<Machine>()) work.k_row = place.k_row, work.head = place.head, work.batch = place.batch;
    return work;
  }

  /// Whether dk of the tile of keys before, in the place of dS, has left before the first step begins. A wait for that
  /// within the step costs each of them 1 to 4%; before steps of 128 queries it costs 3%.
  static constexpr bool kLeavesFirst = C.persistent && C.block_m <= 64;
  /// Before the first step of a block that works on several tiles of keys.
  TILEWISE_INLINE void begin_scores() {
    if constexpr (kLeavesFirst) wait_gradients_read();
    const bool no_step_will = kLeavesFirst ? seen_.count() == 0 : before_ > 0;
    if (no_step_will) begin_values();  // in whose place dv will lie
  }
  /// Whether no query head came before for which the block had this tile of keys.
  TILEWISE_INLINE bool begins_keys() const { return !C.grouped || run_.member == 0; }
  /// Before the first product with V.
  TILEWISE_INLINE void begin_values() {
    if (!begins_keys()) return;
    shared_.values_full.wait(run_.template tile_index<C>() % 2);
    if constexpr (C.persistent && !kLeavesFirst) wait_gradients_read();
  }
  TILEWISE_INLINE void wait_gradients_read() {
    if constexpr (C.own_dq) return;  // from K's place
    if (leads_warpgroup<Machine>()) Machine::wait_stores_read();
    Machine::named_barrier_sync(kKeyRows + Machine::thread() / kWarpgroupThreads, kWarpgroupThreads);
  }

  /// Of the block's tiles those that see one of this warpgroup's keys.
  TILEWISE_INLINE QueryTiles seen_tiles(const BwdWork& work) const {
    QueryTiles seen = query_tiles<C>(work, work.first_key + warpgroup_ * C.kRows, C.kRows);
    if constexpr (leaves_out_hidden<C>()) {
      const SeenRange own = TileRow<Machine, C>(p_, work.batch, work.head, work.tile).seen_by(warpgroup_);
      seen = tiles_within(seen, own.begin, own.end);
    }
    if constexpr (C.split) seen = tiles_within(seen, work.queries.begin, work.queries.end);
    // Then all of them come in front.
    if (seen.count() == 0) seen.begin = seen.end = work.template from_last<C>() ? work.queries.begin : work.queries.end;
    return {uniform<Machine>(seen.begin), uniform<Machine>(seen.end), uniform<Machine>(seen.full_begin),
            uniform<Machine>(seen.full_end)};
  }

  TILEWISE_INLINE void visit_head() {
    scores_.enter_head(p_.score);
    skip(before_);
    if (seen_.count() > 0) {
      tile_place_.wait_full(shared_.tile_ring);
      if constexpr (kReadsAhead) scores_.read_lse(shared_.lse2[tile_place_.stage]);
      scores_.read_marks(shared_.delta[tile_place_.stage]);
      read_kept();
    }
    visit_tiles<C>(
        seen_, hiding_, from_last_, [&] { return kLoopsLarge<C> && scores_.has_large(); },
        [&](auto kind, int32_t tile, bool first, bool more) { step<decltype(kind)::value>(tile, first, more); });
    skip(after_);
  }

  // ------------------------------------------------------------------ steps
  /// A tile of queries. S and dP take turns in the same registers: what overlaps with the arithmetic here are mostly
  /// the other two warpgroups' products. Whatever goes through the queue in front of shared memory (barriers, loads,
  /// fences, exponentials) waits there behind matrix products, 250 cycles and more: it is asked for long before it is
  /// needed.
  template <int kKind>
  TILEWISE_INLINE void step(int32_t tile, bool first, bool more) {
    constexpr bool kMasked = kKind != kWholeTile;
    auto& Q = shared_.queries[tile_place_.stage];
    auto& dO = shared_.douts[tile_place_.stage];
    const int first_row = warpgroup_ * C.kRows;
    auto& K = shared_.keys[run_.template key_place<C>().stage];
    Products::template issue_scores<C.k_type, C.head_dim, true>(scores_.S, K, first_row, Q, false);  // S^T = K Q^T
    RingPlace<C.stages> next = tile_place_;
    next.advance();
    if constexpr (kReadsBeside) scores_.read_lse(shared_.lse2[tile_place_.stage]);
    const bool landed = !more || next.test_full(shared_.tile_ring), room = score_place_.test_empty(shared_.score_ring);
    if constexpr (C.own_couriers()) own_dq_.hand_over(shared_, score_place_.before().parity);
    const bool has_large = kKind == kLargeTile || (!kLoopsLarge<C> && scores_.has_large());
    if constexpr (kMasked && !kReadsLate) scores_.find_hidden(p_, tile);
    Machine::template wgmma_wait<0>();
    pin_registers<Machine>(scores_.S);
    if constexpr (kReadsLate) scores_.read_lse(shared_.lse2[tile_place_.stage]);
    if constexpr (kMasked && kReadsLate) scores_.find_hidden(p_, tile);
    if constexpr (C.tells_large()) {
      if (has_large) scores_.scale_large(p_, shared_.delta[tile_place_.stage]);
    }
    scores_.template weigh<kMasked>(p_, tile, shared_.bias_tile(tile_place_.stage));
    constexpr bool kFirst = kValuesFirst<kMasked>, kBeside = !kFirst && !kValuesLast;
    if constexpr (kFactors && C.dropout) scores_.drop();
    if constexpr (kFirst) Products::template issue_sums<C.out_type>(dV_, scores_.P, dO);
    if constexpr (kFactors) scores_.keep_factors();
    if constexpr (kFirst) {
      Machine::template wgmma_wait<0>();
      pin_registers<Machine>(dV_);
    }
    if constexpr (C.persistent) {
      if (first && (kLeavesFirst || before_ == 0)) begin_values();
    }
    // dP^T = V dO^T, which is held back until P is there, lest both take registers of their own.
    Products::template issue_scores<C.v_type, C.head_dim_v, false>(scores_.S, shared_.values, first_row, dO,
                                                                   p_.shape.batch_size < 0);
    if constexpr (kBeside) Products::template issue_sums<C.out_type>(dV_, scores_.P, dO);  // dV += P^T dO
    if constexpr (kDeltaEarly) scores_.read_delta(shared_.delta[tile_place_.stage]);
    Machine::template wgmma_wait<kBeside ? 1 : 0>();
    pin_registers<Machine>(scores_.S);
    if constexpr (!kDeltaEarly) scores_.read_delta(shared_.delta[tile_place_.stage]);
    scores_.template derive<kMasked>();
    Products::template issue_sums<C.q_type>(dK_, scores_.dS, Q);  // dK += dS^T Q
    if constexpr (kValuesLast) {
      if constexpr (C.dropout) scores_.drop();
      Products::template issue_sums<C.out_type>(dV_, scores_.P, dO);
    }
    if (!room) score_place_.wait_empty(shared_.score_ring);
    scores_.store(shared_.dS[score_place_.stage]);
    if (!landed) next.wait_full(shared_.tile_ring);
    if (more) {
      if constexpr (kReadsAhead) scores_.read_lse(shared_.lse2[next.stage]);
      if constexpr (kKind != kLargeTile) scores_.read_marks(shared_.delta[next.stage]);
      read_kept();
    } else if constexpr (kForgets) {
      scores_.forget();
    }
    publish_scores();
    Machine::template wgmma_wait<0>();
    scores_.pin_operands();
    release_queries();
    if constexpr (C.own_dq) own_dq_.add(shared_, score_place_.before());
  }

  /// Dropout's bits for a tile, which were drawn while the one before was worked on.
  TILEWISE_INLINE void read_kept() {
    if constexpr (C.dropout) {
      draw_place_.wait_full(shared_.draw_ring);
      scores_.read_kept(shared_.draws);
      arrive_as_lanes(shared_.draw_ring.empty[0]);
      draw_place_.advance();
    }
  }
  TILEWISE_INLINE void publish_scores() {
    Machine::fence_shared_writes();
    arrive_as_warp(shared_.score_ring.full[score_place_.stage], lane_);
    score_place_.advance();
    if constexpr (C.own_dq && !C.ordered) own_dq_.send(shared_);
  }
  TILEWISE_INLINE void release_queries() {
    arrive_as_warp(shared_.tile_ring.empty[tile_place_.stage], lane_);
    tile_place_.advance();
  }

  /// Tiles that see none of this warpgroup's keys: dS is 0.
  TILEWISE_INLINE void skip(int32_t count) {
    TILEWISE_NO_UNROLL
    for (; count > 0; --count) {
      if constexpr (C.own_couriers()) own_dq_.hand_over(shared_, score_place_.before().parity);
      scores_.clear();
      score_place_.wait_empty(shared_.score_ring);
      scores_.store(shared_.dS[score_place_.stage]);
      publish_scores();
      read_kept();
      tile_place_.wait_full(shared_.tile_ring);
      release_queries();
      if constexpr (C.own_dq) own_dq_.add(shared_, score_place_.before());
    }
  }

  const BwdParamsOf<C>& p_;
  Shared& shared_;
  const BwdRun& run_;
  const int lane_, warpgroup_;
  const QueryTiles seen_;
  const int32_t before_, after_;  // steps in front and behind, in whose tiles only the other warpgroup's keys are seen
  const bool from_last_;          // see BwdWork
  RingPlace<C.stages> tile_place_;
  RingPlace<C.score_stages()> score_place_;
  RingPlace<1> draw_place_;
  Scores scores_;
  HidingTiles<Machine, C> hiding_;
  Choose<(C.own_dq != 0), BwdOwnDq<Ops, C>, BwdNoDq> own_dq_;
  Fragment<Ops, 16, C.head_dim>& dK_;
  Fragment<Ops, 16, C.head_dim_v>& dV_;
};

}  // namespace tilewise::device
