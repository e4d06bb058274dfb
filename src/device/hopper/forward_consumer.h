// A consumer warpgroup of the forward kernel: 64 rows of queries, keys streamed past them. The scores of a tile are
// computed while the weights of the one before multiply their values, across tiles of queries too.
#pragma once

#include "device/hopper/forward_epilogue.h"
#include "device/hopper/forward_weights.h"
#include "device/sm90/matrix_descriptor.h"

namespace tilewise::device {

template <class Ops, auto C>
class ForwardConsumer {
  using Machine = typename Ops::Machine;
  using Shared = HopperForwardShared<Machine, C>;
  using Work = SharedWork<Machine>;
  using Weights = ForwardWeights<Ops, C>;
  using Softmax = typename Weights::Softmax;
  using Out = typename Weights::Out;

  static constexpr bool kStagesOut = Shared::kStagesOut, kSkips = lists_tiles<C>();
  static constexpr bool kWatches = C.watches(), kBoxesBias = C.bias_boxes != 0;
  static constexpr bool kFetchesEarly = BoxedBias<Machine, C>::kFetchesEarly;

 public:
  TILEWISE_INLINE ForwardConsumer(const ForwardParamsOf<C>& params, Shared& shared)
      : p_(params),
        shared_(shared),
        warpgroup_(uniform<Machine>(Machine::thread() / kWarpgroupThreads - 1)),
        weights_(params) {}

  TILEWISE_INLINE void run() {
    O_.clear();
    weights_.clear();
    if (warpgroup_ == C.consumers() - 1) pass_turn();
    bool pending = false;  // a tile of queries whose last values and output are still to come
    for (;; work_place_.advance()) {
      work_place_.wait_full(shared_.work_ring);
      const Work& work = shared_.work[work_place_.stage];
      if (uniform<Machine>(work.tile) == WorkTile::kNoMore) break;
      pending = visit_keys(work, pending);
    }
    if (pending) finish_rows();
    if (kStagesOut && leads_warpgroup<Machine>()) Machine::wait_stores();
  }

 private:
  // ------------------------------------------------------------------ ping-pong and rings
  TILEWISE_INLINE void take_turn() const {
    if constexpr (C.ping_pong) Machine::named_barrier_sync(kTurn + warpgroup_, 2 * kWarpgroupThreads);
  }
  TILEWISE_INLINE void pass_turn() const {
    const int next = warpgroup_ + 1 == C.consumers() ? 0 : warpgroup_ + 1;
    if constexpr (C.ping_pong) Machine::named_barrier_arrive(kTurn + next, 2 * kWarpgroupThreads);
  }
  TILEWISE_INLINE void release_keys() {
    Barrier<Machine>& empty = shared_.key_ring.empty[key_place_.stage];
    if constexpr (C.shares_draws()) {
      arrive_as_lanes(empty);  // whose loads the warp that leaves the next stage's words waits for
    } else {
      hand_back(empty);
    }
    key_place_.advance();
  }
  TILEWISE_INLINE void release_values() {
    hand_back(shared_.value_ring.empty[value_place_.stage]);
    value_place_.advance();
  }
  /// A stage of K or V to all who refill it.
  TILEWISE_INLINE static void hand_back(Barrier<Machine>& empty) {
    if constexpr (C.clustered) {
      arrive_as_warp_at_all<C.blocks_of_cluster()>(empty);
    } else {
      arrive_as_warp(empty);
    }
  }
  /// Of Q, where O does not pass through its place.
  TILEWISE_INLINE void release_queries() {
    arrive_as_warp(shared_.row_rings[warpgroup_].empty[row_place_.stage]);
    row_place_.advance();
  }
  /// Tiles of keys that the other warpgroups see and this one does not: handed on, and the turn with them.
  TILEWISE_INLINE void skip_keys(int32_t count) {
    TILEWISE_NO_UNROLL
    for (; count > 0; --count) skip_key_tile();
  }
  TILEWISE_INLINE void skip_key_tile() {
    key_place_.wait_full(shared_.key_ring);
    take_turn();
    pass_turn();
    release_keys();
  }
  TILEWISE_INLINE void skip_values() {
    TILEWISE_NO_UNROLL
    for (; skipped_values_ > 0; --skipped_values_) {
      value_place_.wait_full(shared_.value_ring);
      release_values();
    }
  }

  // ------------------------------------------------------------------ products
  /// Step k of a K-major tile.
  template <class Tile>
  TILEWISE_INLINE static constexpr int32_t along(int k) {
    return k / 4 * Tile::kChunkBytes + k % 4 * C.kStepBytes;
  }
  /// S = Q K^T.
  TILEWISE_INLINE void issue_scores() {
    auto& rows = shared_.rows[row_place_.stage][warpgroup_];
    const auto Q = MatrixDescriptor::of<Machine>(&rows, 16),
               K = MatrixDescriptor::of<Machine>(&shared_.keys[key_place_.stage], 16);
    pin_registers<Machine>(weights_.S);
    Machine::wgmma_fence();
    TILEWISE_UNROLL
    for (int k = 0; k < C.head_dim / C.depth(); ++k) {
      Machine::template wgmma<C.q_type, kKMajor, kKMajor>(weights_.S.tile[0],
                                                          Q.advanced(along<typename Shared::RowTile>(k)),
                                                          K.advanced(along<typename Shared::KeyTile>(k)), k > 0);
    }
    Machine::wgmma_commit();
  }
  /// O += P V, or O = P V where the row is fresh. What is not wanted is overwritten later, and V is whatever lies
  /// there.
  TILEWISE_INLINE void issue_out(bool wanted = true) {
    const auto V = MatrixDescriptor::of<Machine>(&shared_.values[value_place_.stage], Shared::ValueTile::kChunkBytes);
    pin_registers<Machine>(O_);
    Machine::wgmma_fence();
    constexpr Major kMajor = C.fp8() ? kKMajor : kMnMajor;
    TILEWISE_UNROLL
    for (int k = 0; k < C.block_n / C.depth(); ++k) {
      const int32_t at = C.fp8() ? along<typename Shared::ValueTile>(k) : k * 16 * kChunkRowBytes;
      Machine::template wgmma<C.v_type, kMajor>(O_.tile[0], weights_.P[k], V.advanced(at), k > 0 || !fresh_, wanted);
    }
    Machine::wgmma_commit();
  }

  // ------------------------------------------------------------------ steps
  /// The scores of a tile of keys, and the values of the one before.
  template <bool kMasked>
  TILEWISE_INLINE void step(int32_t tile, bool last) {
    key_place_.wait_full(shared_.key_ring);
    fetch_draws();
    take_turn();
    issue_scores();
    value_place_.wait_full(shared_.value_ring);
    issue_out();
    fresh_ = false;
    pass_turn();
    weights_.draw(p_, tile);
    if constexpr (kFetchesEarly) weights_.fetch_bias(bias_tile());
    Machine::template wgmma_wait<1>();
    pin_registers<Machine>(weights_.S);
    if constexpr (!kFetchesEarly) weights_.fetch_bias(bias_tile());
    constexpr bool kLooksAgain = !kMasked && kWatches, kReleasesLate = kLooksAgain || kBoxesBias;
    if constexpr (!kReleasesLate) release_operands(last);
    weights_.template become<kMasked>(p_, tile, O_, [&] { release_values(); });
    if constexpr (kLooksAgain) {
      weights_.watch(p_, tile, O_, shared_.rows[row_place_.stage][warpgroup_], shared_.keys[key_place_.stage],
                     bias_tile());
    }
    if constexpr (kReleasesLate) release_operands(last);
  }
  /// Of the scores in work, where a bias comes in boxes.
  TILEWISE_INLINE auto& bias_tile() {
    if constexpr (kBoxesBias) {
      return shared_.bias[key_place_.stage][warpgroup_];
    } else {
      return shared_;  // not looked at
    }
  }
  /// Of the tile of keys in work.
  TILEWISE_INLINE void fetch_draws() {
    if constexpr (C.shares_draws()) weights_.fetch_draws(shared_.draws.columns[key_place_.stage]);
  }
  TILEWISE_INLINE void release_operands(bool last) {
    release_keys();
    if (!kStagesOut && last) release_queries();
  }

  /// The first tile of keys of a tile of queries; the last values of the one before, and its output, meanwhile.
  TILEWISE_INLINE void first_step(const Work& work, int32_t tile, bool masked, bool last, bool pending) {
    Softmax softmax = weights_.softmax;
    const auto finish_last = [&] {
      if (pending) {
        release_values();
        store_rows(softmax);
      }
      skip_values();
      fresh_ = true;
    };
    if constexpr (kStagesOut) {
      if (pending) row_place_.advance();
      row_place_.wait_full(shared_.row_rings[warpgroup_]);
      key_place_.wait_full(shared_.key_ring);
      take_turn();
      issue_scores();
      if (pending) value_place_.wait_full(shared_.value_ring);
      issue_out(pending);
      pass_turn();
      Machine::template wgmma_wait<1>();
      pin_registers<Machine>(weights_.S);
      fetch_draws();
      if (!kBoxesBias) release_operands(last);
      weights_.start(p_, work, warpgroup_, tile, masked, bias_tile(), O_, finish_last);
      if (kBoxesBias) release_operands(last);
      if (pending) release_staged_rows();
    } else {
      // The place of Q is free since the last scores: Q is on its way while the last values are multiplied.
      if (pending) value_place_.wait_full(shared_.value_ring);
      issue_out(pending);
      row_place_.wait_full(shared_.row_rings[warpgroup_]);
      key_place_.wait_full(shared_.key_ring);
      take_turn();
      issue_scores();
      pass_turn();
      Machine::template wgmma_wait<1>();
      pin_registers<Machine>(O_);
      finish_last();
      Machine::template wgmma_wait<0>();
      pin_registers<Machine>(weights_.S);
      fetch_draws();
      if (!kBoxesBias) release_operands(last);
      weights_.start(p_, work, warpgroup_, tile, masked, bias_tile(), O_, [] {});
      if (kBoxesBias) release_operands(last);
    }
  }

  /// True if the last values and the output are still to come.
  TILEWISE_INLINE bool visit_keys(const Work& work, bool pending) {
    const int32_t queries = C.pack_gqa ? p_.order.queries_per_warpgroup : C.kRows;
    const int32_t first = (uniform<Machine>(work.tile) * C.consumers() + warpgroup_) * queries;
    const int32_t last = minimum(first + queries, uniform<Machine>(work.seqlen_q)) - 1;
    const int32_t block_begin = uniform<Machine>(work.begin), block_end = uniform<Machine>(work.end);
    if (first >= uniform<Machine>(work.all_q)) {
      pass_tile(loaded_tiles(work), pending);
      return false;
    }
    const KeyBand band = key_band(p_.score);
    KeyTiles full = full_tiles<C>(band, work, first, last);
    full = {uniform<Machine>(full.begin), uniform<Machine>(full.end)};
    if constexpr (kSkips) {
      const KeyTiles seen = seen_tiles<C>(band, work, first, last);
      visit_seen_keys(work, {uniform<Machine>(seen.begin), uniform<Machine>(seen.end)}, full, pending);
      return true;
    }
    int32_t begin = block_begin, end = block_end;
    if constexpr (C.ranged) {
      // Skipped tiles' values are handed back late: with the one yet to be multiplied they must fit into the ring.
      const KeyTiles seen = seen_tiles<C>(band, work, first, last);
      const int32_t room = C.stages - 1 - skipped_values_;
      begin = uniform<Machine>(minimum(minimum(maximum(seen.begin, begin), begin + room), block_end - 1));
      end = uniform<Machine>(maximum(maximum(minimum(seen.end, end), begin + 1), block_end - (C.stages - 1)));
    }
    if constexpr (FunctionsOf<C>::kHides) full = {0, 0};  // it may hide some of any

    skipped_values_ += begin - block_begin;
    skip_keys(begin - block_begin);
    first_step(work, begin, begin < full.begin || begin >= full.end, begin + 1 == end, pending);
    int32_t tile = begin + 1;
    if constexpr (C.windowed) {
      TILEWISE_NO_UNROLL
      for (; tile < minimum(end, full.begin); ++tile) step<true>(tile, tile + 1 == end);
    }
    if constexpr (!FunctionsOf<C>::kHides) {
      TILEWISE_NO_UNROLL
      for (; tile < minimum(end, full.end); ++tile) step<false>(tile, tile + 1 == end);
    }
    TILEWISE_NO_UNROLL
    for (; tile < end; ++tile) step<true>(tile, tile + 1 == end);
    skipped_values_ += block_end - end;
    skip_keys(block_end - end);
    return true;
  }

  /// The tiles that the block loads, of which these rows see those in `seen` at most, and of those in `full` whatever
  /// mask_mod leaves. Where they see nothing of one, as many are handed on as the ring has room for their values; a
  /// tile of queries begins with products all the same.
  TILEWISE_INLINE void visit_seen_keys(const Work& work, const KeyTiles& seen, const KeyTiles& full, bool pending) {
    TileWalk<Machine, C, true> walk = walk_of(work);
    SeenTile at = walk.take();
    const auto is_masked = [&] {
      return at.class_of(warpgroup_) != kTileSeen || at.tile < full.begin || at.tile >= full.end;
    };
    first_step(work, at.tile, is_masked(), walk.is_done(), pending);
    TILEWISE_NO_UNROLL
    while (!walk.is_done()) {
      at = walk.take();
      const bool last = walk.is_done();
      const bool hidden = at.class_of(warpgroup_) == kTileHidden || at.tile < seen.begin || at.tile >= seen.end;
      if (hidden && skipped_values_ < C.stages - 1) {
        ++skipped_values_;
        skip_key_tile();
        if (!kStagesOut && last) release_queries();
        continue;
      }
      if (is_masked()) {
        step<true>(at.tile, last);
      } else {
        step<false>(at.tile, last);
      }
      skip_values();
    }
  }
  TILEWISE_INLINE TileWalk<Machine, C, true> walk_of(const Work& work) const {
    const WalkStart start{static_cast<uint32_t>(uniform<Machine>(work.first_entry)), uniform<Machine>(work.first_key)};
    return {p_,    uniform<Machine>(work.batch), uniform<Machine>(work.head), uniform<Machine>(work.tile),
            start, uniform<Machine>(work.end)};
  }

  /// How many tiles of keys the block loads for its queries.
  TILEWISE_INLINE int32_t loaded_tiles(const Work& work) const {
    if constexpr (kSkips) {
      int32_t count = 0;
      for (TileWalk<Machine, C, true> walk = walk_of(work); !walk.is_done(); ++count) walk.take();
      return count;
    } else {
      return uniform<Machine>(work.end) - uniform<Machine>(work.begin);
    }
  }

  /// A tile of queries that ends before this warpgroup's rows: everything is handed on.
  TILEWISE_INLINE void pass_tile(int32_t count, bool pending) {
    if (pending) finish_rows();
    TILEWISE_NO_UNROLL
    for (; count > 0; --count) {
      skip_key_tile();
      value_place_.wait_full(shared_.value_ring);
      release_values();
    }
    // Q that is not looked at must have landed all the same before its place gets another.
    row_place_.wait_full(shared_.row_rings[warpgroup_]);
    if constexpr (kStagesOut) {
      // All meet: a lane might else come after the next Q but one has landed in this place, and wait for good.
      release_staged_rows<true>();
      row_place_.advance();
    } else {
      release_queries();
    }
    arrive_as_warp(shared_.work_ring.empty[stored_place_.stage]);
    stored_place_.advance();
  }

  // ------------------------------------------------------------------ output
  /// The last values, and the output, of a tile of queries that no other overlaps.
  TILEWISE_INLINE void finish_rows() {
    value_place_.wait_full(shared_.value_ring);
    issue_out();
    Machine::template wgmma_wait<0>();
    pin_registers<Machine>(O_);
    release_values();
    skip_values();
    if constexpr (kStagesOut) row_place_.advance();
    store_rows(weights_.softmax);
    if constexpr (kStagesOut) release_staged_rows();
  }

  /// Output of the tile of queries before the one at row_place_.
  TILEWISE_INLINE void store_rows(Softmax& softmax) {
    const ForwardEpilogue<Machine, C> store(p_, shared_.work[stored_place_.stage], warpgroup_);
    const LseOfRows lse = store.normalize(softmax, O_);
    if constexpr (kStagesOut) {
      auto& tile = shared_.rows[staged_place_.stage][warpgroup_];
      store.stage(O_, tile);
      Machine::named_barrier_sync(kWarpgroup + warpgroup_, kWarpgroupThreads);
      store.store_staged(tile);
    } else if constexpr (C.split) {
      store.store_part(O_);
    } else {
      store.store_directly(O_);
    }
    store.store_lse(lse);
    arrive_as_warp(shared_.work_ring.empty[stored_place_.stage]);
    stored_place_.advance();
  }
  /// Hands the place of Q back once the output that stood there has left it. kMeets: once all lanes are done with it,
  /// which with lengths may have copied it themselves.
  template <bool kMeets = C.lengths != 0>
  TILEWISE_INLINE void release_staged_rows() {
    if constexpr (kMeets) Machine::named_barrier_sync(kWarpgroup + warpgroup_, kWarpgroupThreads);
    if (leads_warpgroup<Machine>()) {
      Machine::wait_stores_read();
      shared_.row_rings[warpgroup_].empty[staged_place_.stage].arrive();
    }
    staged_place_.advance();
  }

  const ForwardParamsOf<C>& p_;
  Shared& shared_;
  const int32_t warpgroup_;
  RingPlace<C.q_stages> row_place_, staged_place_;  // of Q, and of the output that leaves through it
  RingPlace<C.stages> key_place_, value_place_;
  RingPlace<kWorkStages> work_place_, stored_place_;  // of the tile of queries in work, and to be stored
  int32_t skipped_values_ = 0;                        // behind those that are yet to be multiplied
  bool fresh_ = false;                                // the next products overwrite O
  Weights weights_;
  Out O_;
};

}  // namespace tilewise::device
