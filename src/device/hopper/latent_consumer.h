// The two consumer warpgroups of MLA's decoding. Both hold all 64 rows, each half of the columns of out. They make
// the weights of every other tile of keys, in turn, and both multiply every tile's: one's softmax runs beside the
// other's products.
#pragma once

#include "device/hopper/latent_epilogue.h"
#include "device/hopper/softmax.h"
#include "device/sm90/mma.h"

namespace tilewise::device {

template <class Ops, HopperLatentConfig C>
class LatentConsumer {
  using Machine = typename Ops::Machine;
  using Shared = HopperLatentShared<Machine, C>;
  using RowTile = typename Shared::RowTile;
  using KeyTile = typename Shared::KeyTile;
  using Scores = Fragment<Ops, 16, C.kKeys>;
  using Out = Fragment<Ops, 16, C.head_dim_v / C.kConsumers>;
  using Softmax = SteadySoftmax<Scores, C.v_type, false, true>;
  using PerRow = typename Softmax::PerRow;
  static constexpr int kDepth = kStepDepth<C.v_type>, kSteps = C.kKeys / kDepth;
  static constexpr int kSlots = Scores::kSlots, kComputing = C.kConsumers * kWarpgroupThreads;
  static constexpr bool kPingPong = !C.clustered;  // not measured where stages wait for both blocks of a cluster

 public:
  TILEWISE_INLINE LatentConsumer(const HopperLatentParams& params, Shared& shared, const LatentWork& work,
                                 int32_t warpgroup)
      : p_(params),
        shared_(shared),
        work_(work),
        rows_(params, work),
        warpgroup_(warpgroup),
        scale_(params.score.softmax_scale * kLog2E) {}

  TILEWISE_INLINE void run() {
    O_.clear();
    softmax_.clear();
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      if (!rows_.is_among(rows_.row_of_slot(slot), work_.seqlen_q)) softmax_.ignore(slot);
    }
    shared_.rows_landed.wait(0);
    const int32_t begin = uniform<Machine>(work_.begin), end = uniform<Machine>(work_.end);
    int32_t tile = begin;
    if (warpgroup_ == 0) {
      TILEWISE_NO_UNROLL
      for (; tile + 1 < end; tile += 2, parity_ ^= 1) lead(tile);
      if (tile < end) make_first<false>(tile);
    } else {
      TILEWISE_NO_UNROLL
      for (; tile + 1 < end; tile += 2, parity_ ^= 1) follow(tile);
      if (tile < end) take_last();
    }
    if constexpr (C.clustered) Machine::arrive_at_cluster();  // nothing is handed back any more
    finish();
  }

 private:
  // ------------------------------------------------------------------ a pair of tiles
  // The tile of warpgroup i lies in stage i. Tiles are multiplied in their order, so that what their weights are
  // counted from never falls. With ping-pong the second tile's scores are issued behind the first one's
  // and before its values: the matrix unit takes products in this order, each softmax beside the other's products.

  /// By warpgroup 0, whose tile is the first one.
  TILEWISE_INLINE void lead(int32_t tile) {
    make_first<true>(tile);
    shared_.weights[1].wait(parity_);
    take_over_references();
    issue_others_out();
    finish_out(1);
    hand_back(shared_.last.empty[1], 1);
  }
  /// Of a pair, or without a second one.
  template <bool kPaired>
  TILEWISE_INLINE void make_first(int32_t tile) {
    issue_scores(tile);
    if constexpr (kPaired && kPingPong) Machine::named_barrier_arrive(kFirstIssued, kComputing);
    Machine::template wgmma_wait<0>();
    pin_registers<Machine>(S_);
    PerRow factor;
    if (make_weights(tile, factor)) O_.scale_rows(factor);
    if constexpr (kPaired && kPingPong) Machine::named_barrier_sync(kSecondIssued, kComputing);
    issue_own_out();
    finish_out(0);
  }

  /// By warpgroup 1, whose tile is the second one.
  TILEWISE_INLINE void follow(int32_t tile) {
    if constexpr (kPingPong) Machine::named_barrier_sync(kFirstIssued, kComputing);
    issue_scores(tile + 1);
    if constexpr (kPingPong) Machine::named_barrier_arrive(kSecondIssued, kComputing);
    shared_.weights[0].wait(parity_);
    take_over_references();
    issue_others_out();
    Machine::template wgmma_wait<1>();
    pin_registers<Machine>(S_);
    PerRow factor;
    const bool moved = make_weights(tile + 1, factor);
    finish_out(0);
    hand_back(shared_.last.empty[0], 0);
    if (moved) O_.scale_rows(factor);
    issue_own_out();
    finish_out(1);
  }
  TILEWISE_INLINE void take_last() {
    shared_.weights[0].wait(parity_);
    take_over_references();
    issue_others_out();
    finish_out(0);
    hand_back(shared_.last.empty[0], 0);
  }

  // ------------------------------------------------------------------ products
  /// S = Q K^T of this warpgroup's tile, part by part as its columns land.
  TILEWISE_INLINE void issue_scores(int32_t tile) {
    const RingPlace<C.kStages> place{static_cast<uint32_t>(warpgroup_), parity_};
    // Past the end of a sequence keys are cleared before the last chunk counts as landed.
    const bool ends = !C.selects && (tile + 1) * C.kKeys > work_.seqlen_k;
    if (ends) place.wait_full(shared_.last);
    pin_registers<Machine>(S_);
    Machine::wgmma_fence();
    TILEWISE_UNROLL
    for (int i = 0; i < C.kConsumers; ++i) {
      place.wait_full(shared_.half[i]);
      multiply_chunks(i * Shared::kHalfChunks, Shared::kHalfChunks);
    }
    if (!ends) place.wait_full(shared_.last);
    multiply_chunks(Shared::kLastChunk, 1);
    Machine::wgmma_commit();
  }
  TILEWISE_INLINE void multiply_chunks(int first, int count) {
    constexpr int kStepsAChunk = kChunkRowBytes / kStepBytes;
    const auto Q = MatrixDescriptor::of<Machine>(&shared_.rows, 16),
               K = MatrixDescriptor::of<Machine>(&shared_.keys[warpgroup_], 16);
    TILEWISE_UNROLL
    for (int k = first * kStepsAChunk; k < (first + count) * kStepsAChunk; ++k) {
      Machine::template wgmma<C.q_type, kKMajor, kKMajor>(S_.tile[0], Q.advanced(k_major_step<RowTile>(k)),
                                                          K.advanced(k_major_step<KeyTile>(k)), k > 0);
    }
  }

  /// This warpgroup's columns of the values in a stage.
  TILEWISE_INLINE MatrixDescriptor values_of(int32_t stage) const {
    return MatrixDescriptor::of<Machine>(shared_.keys[stage].chunk(warpgroup_ * Shared::kHalfChunks),
                                         KeyTile::kChunkBytes);
  }
  /// O += P V of this warpgroup's tile, whose weights are in its registers.
  TILEWISE_INLINE void issue_own_out() {
    const MatrixDescriptor V = values_of(warpgroup_);
    pin_registers<Machine>(O_);
    Machine::wgmma_fence();
    TILEWISE_UNROLL
    for (int k = 0; k < kSteps; ++k) {
      Machine::template wgmma<C.v_type, kMnMajor>(O_.tile[0], P_[k], V.advanced(mn_major_step<KeyTile>(k)), true, true);
    }
    Machine::wgmma_commit();
  }
  /// O += P V of the other's tile, whose weights are in shared memory.
  TILEWISE_INLINE void issue_others_out() {
    const int32_t stage = 1 - warpgroup_;
    const MatrixDescriptor V = values_of(stage),
                           P = MatrixDescriptor::of<Machine>(&shared_.weight_tile(static_cast<uint32_t>(stage)), 16);
    pin_registers<Machine>(O_);
    Machine::wgmma_fence();
    TILEWISE_UNROLL
    for (int k = 0; k < kSteps; ++k) {
      Machine::template wgmma<C.v_type, kKMajor, kMnMajor>(O_.tile[0], P.advanced(k * kStepBytes),
                                                           V.advanced(mn_major_step<KeyTile>(k)), true);
    }
    Machine::wgmma_commit();
  }
  /// Waits for all products, and hands this warpgroup's columns of a stage back.
  TILEWISE_INLINE void finish_out(int stage) {
    Machine::template wgmma_wait<0>();
    pin_registers<Machine>(O_);
    hand_back(shared_.half[warpgroup_].empty[stage], warpgroup_);
  }
  /// A part of a stage to the block of the cluster that refills it.
  TILEWISE_INLINE static void hand_back(Barrier<Machine>& empty, int32_t rank) {
    if constexpr (!C.clustered) return arrive_as_warp(empty);
    Machine::wave_sync();
    if (Machine::lane() == 0) empty.arrive_at(rank);
  }

  // ------------------------------------------------------------------ weights
  /// S becomes P, in registers and for the other warpgroup. True if O is to be multiplied by `factor`.
  TILEWISE_INLINE bool make_weights(int32_t tile, PerRow& factor) {
    const int32_t first_key = tile * C.kKeys, last_key = first_key + C.kKeys - 1;
    const bool ends = last_key >= work_.seqlen_k;
    if constexpr (C.selects) {
      hide_unseen(tile);
    } else if (ends || (C.ranged && last_key > work_.first_query + work_.diagonal)) {
      hide(first_key);
    }
    typename Softmax::NoRest rest;
    const bool moved = softmax_.move(S_, scale_, factor, rest) != 0;
    typename Softmax::template TileSums<true> sums;
    softmax_.template weigh<0, Softmax::kElements>(S_, scale_, sums);
    softmax_.add(sums);
    // Weights take the place of the last chunk of keys, which all warps must have multiplied.
    Machine::named_barrier_sync(kWarpgroup + warpgroup_, kWarpgroupThreads);
    auto& tile_of_weights = shared_.weight_tile(static_cast<uint32_t>(warpgroup_));
    const int lane = Machine::lane(), row = warp_row<Machine>() + lane % 16;
    TILEWISE_UNROLL
    for (int k = 0; k < kSteps; ++k) {
      TILEWISE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const auto& x = S_.tile[0][2 * k + i / 2];
        P_[k].word[i] = Machine::template pack<C.v_type>(x[2 * (i % 2)], x[2 * (i % 2) + 1]);
      }
      Machine::store_matrices(tile_of_weights.piece(row, 2 * k + lane / 16), P_[k].word);
    }
    share_references();
    Machine::fence_shared_writes();
    arrive_as_lanes(shared_.weights[warpgroup_]);
    return moved;
  }

  /// Hides keys past the end of the sequence, and those that a row's query does not see.
  TILEWISE_INLINE void hide(int32_t first_key) {
    const int32_t origin = first_key + 2 * (Machine::lane() % 4);  // columns count from this lane's first one
    int32_t last[kSlots];
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      last[slot] = work_.seqlen_k - 1;
      if constexpr (C.ranged) last[slot] = minimum(last[slot], rows_.query(rows_.row_of_slot(slot)) + work_.diagonal);
      last[slot] -= origin;
    }
    S_.for_each(0, [&](int slot, int col, auto&& x) { x = col > last[slot] ? -kInfinity : x; });
  }

  /// Of keys that are selected, as the producer tells.
  TILEWISE_INLINE void hide_unseen(int32_t tile) {
    const auto seen = Machine::template load_shared<SeenKeys>(&shared_.seen[tile % (2 * C.kStages)]);
    if ((seen.word[0] & seen.word[1]) == ~0u) return;
    const int32_t first = 2 * (Machine::lane() % 4);
    const uint32_t own[2] = {seen.word[0] >> first, seen.word[1] >> first};
    S_.for_each(0, [&](int, int col, auto&& x) { x = (own[col / 32] >> col % 32 & 1u) != 0 ? x : -kInfinity; });
  }

  TILEWISE_INLINE void share_references() {
    if (Machine::lane() % 4 != 0) return;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      const auto reference = softmax_.reference(slot);
      Machine::store_shared(&shared_.reference[warpgroup_][rows_.row_of_slot(slot)],
                            RowRecord{reference.base, reference.limit, 0.0f, 0.0f});
    }
  }
  /// Before the other's weights are multiplied, which are counted from its references.
  TILEWISE_INLINE void take_over_references() {
    typename Softmax::Reference others[kSlots];
    bool differ = false;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      const auto record =
          Machine::template load_shared<RowRecord>(&shared_.reference[1 - warpgroup_][rows_.row_of_slot(slot)]);
      others[slot] = {record.base, record.limit};
      differ |= !others[slot].equals(softmax_.reference(slot));
    }
    if (!Machine::any(differ)) return;
    PerRow factor;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) factor[slot] = softmax_.refer_to(slot, others[slot], scale_);
    O_.scale_rows(factor);
  }

  // ------------------------------------------------------------------ output
  TILEWISE_INLINE void finish() {
    softmax_.reduce_sum();
    if (Machine::lane() % 4 == 0) {
      TILEWISE_UNROLL
      for (int slot = 0; slot < kSlots; ++slot) {
        Machine::store_shared(&shared_.row_sum[warpgroup_][rows_.row_of_slot(slot)],
                              RowRecord{0.0f, 0.0f, softmax_.row_sum[slot], 0.0f});
      }
    }
    Machine::named_barrier_sync(kConsumersMeet, kComputing);
    const LatentEpilogue<Machine, C> store(p_, work_, warpgroup_);
    PerRow factor;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      const int32_t row = rows_.row_of_slot(slot);
      const float sum = Machine::template load_shared<RowRecord>(&shared_.row_sum[0][row]).sum +
                        Machine::template load_shared<RowRecord>(&shared_.row_sum[1][row]).sum;
      const bool used = rows_.is_among(row, work_.seqlen_q), seen = sum != 0.0f;
      RowLse lse = softmax_.lse(slot, sum, p_.score.softmax_scale);
      if (!used) lse = {-kInfinity, 0.0f};
      factor[slot] = used && seen ? Machine::reciprocal(sum) : 0.0f;
      if (warpgroup_ == 0 && Machine::lane() % 4 == 0) store.store_lse(row, lse);
    }
    O_.scale_or_clear_rows(factor);
    store.store(O_);
  }

  const HopperLatentParams& p_;
  Shared& shared_;
  const LatentWork& work_;
  const LatentRows<Machine> rows_;
  const int32_t warpgroup_;
  const float scale_;    // from scores to units of log2
  uint32_t parity_ = 0;  // of the stages' phases
  Softmax softmax_;
  Scores S_;
  WgmmaRegisters P_[kSteps];
  Out O_;
};

}  // namespace tilewise::device
