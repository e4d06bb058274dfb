// Loads K and V of a block of the backward kernel, and Q, dO and their statistics tile by tile: by one warp, of which
// one thread talks to TMA.
#pragma once

#include "device/hopper/bwd_shared.h"
#include "device/hopper/bwd_work.h"
#include "device/tile/platform.h"

namespace tilewise::device {

template <class Machine, auto C>
class BwdLoader {
  using Shared = HopperBwdShared<Machine, C>;

 public:
  TILEWISE_INLINE BwdLoader(const BwdParamsOf<C>& params, Shared& shared, const BwdWork& work, BwdRun& run, bool leads)
      : p_(params), shared_(shared), work_(work), run_(run), leads_(leads) {}

  /// Whether the next tile of keys is called before this one is done: its first queries where they are next in the
  /// ring, and K once dq's last product has read this one's.
  static constexpr bool kEarly = C.persistent && !C.lengths && !C.lone_loader();
  TILEWISE_INLINE void load_next_queries() {
    const auto& item = shared_.items[(run_.index + 1) % 2];
    if (Machine::agreed(item.steps) == 0) return;
    const auto at = ring_place<C.stages>(run_.steps + static_cast<uint32_t>(next_));
    at.wait_empty(shared_.tile_ring);
    await_preprocess(Machine::agreed(item.batch), Machine::agreed(item.query_head));
    Machine::wave_sync();
    if (!leads_) return;
    copy_queries(at.stage, 0, item.first_query, item.query_head, item.batch, item.k_row,
                 shared_.tile_ring.full[at.stage]);
  }
  TILEWISE_INLINE void load_next_keys() {
    const auto& item = shared_.items[(run_.index + 1) % 2];
    if (!work_.template ends_keys<C>(p_) || Machine::agreed(item.steps) == 0) return;
    shared_.keys_done[0].wait(run_.seen % 2);
    Machine::wave_sync();
    if (leads_) call_keys(0, item.k_row, item.head, item.batch, true);
  }

  /// K, V and as many tiles of queries as there are stages.
  TILEWISE_INLINE void begin() {
    const bool early = kEarly && run_.early, any = work_.steps() > 0;
    if (any && !early && work_.begins_keys()) begin_keys();
    // Statistics, and zeros in dq_accum and in the counter; additions come after them.
    if (run_.index == 0) wait_for_preprocess<Machine, C>();
    if (early) {
      next_ = 1;
    } else if (any) {
      load_queries();
    }
    if (work_.begins_keys()) begin_values();
    TILEWISE_NO_UNROLL
    for (int i = 1; i < C.stages && has_more(); ++i) load_queries();
  }

  TILEWISE_INLINE bool has_more() const { return next_ < work_.steps(); }

  /// All that a block needs, by a warp that has nothing else to do.
  TILEWISE_INLINE void load_all() {
    if (work_.steps() == 0) return;
    begin();
    finish_keys();
    TILEWISE_NO_UNROLL
    while (has_more()) load_queries();
  }
  /// Whether the next tile of keys is drawn as late as its answer allows. Where dq's sums have an order, whoever drew
  /// an earlier tile is waited for, so that it had better begin with it at once: drawn a whole tile ahead, under a
  /// causal mask, whose tiles last 2 to 64 steps, it made 128 columns at 4k take 3.8 times as long. Without an order a
  /// block that holds a tile in the end while others have none costs 256 columns under a mask 2%.
  static constexpr bool kDrawsLate = C.ordered || (C.ranged && C.stages == 2);
  /// The same of a tile of keys among several. The first queries, V and K take places of the tile before, and are
  /// called as soon as these are free: of wide heads in this order, else K before V, by whose place dv leaves. draw()
  /// asks for the next tile, publish(what it gave) tells the block of it, once the answer is likely to have come.
  template <class Draw, class Publish>
  TILEWISE_INLINE void load_among_others(const Draw& draw, const Publish& publish) {
    const bool any = work_.steps() > 0, first = run_.index == 0, calls_keys = work_.begins_keys();
    if (first) {
      if (any) begin_keys();
      wait_for_preprocess<Machine, C>();  // statistics, and zeros in dq_accum and in the counter
    }
    uint32_t drawn = 0;
    if constexpr (!kDrawsLate) drawn = draw();
    if (any) {
      if (C.key_stages() > 1 && !first && calls_keys) begin_keys();
      load_queries();
      if (C.shares_keys && calls_keys) begin_values();
      if (C.key_stages() == 1 && !first && calls_keys) begin_keys();
    }
    if (!C.shares_keys && calls_keys) begin_values();
    finish_keys();
    if constexpr (!kDrawsLate) publish(drawn);
    TILEWISE_NO_UNROLL
    while (next_ + kDrawsLate < work_.steps()) load_queries();
    if constexpr (kDrawsLate) {
      drawn = draw();
      if (has_more()) load_queries();
      publish(drawn);
    }
  }

  /// Calls K, once dq's last product of the tile of keys whose place it takes has read that.
  TILEWISE_INLINE void begin_keys() {
    const auto at = run_.template key_place<C>();
    if constexpr (C.persistent) {
      shared_.keys_done[at.stage].wait(at.parity ^ 1);
      Machine::wave_sync();
    }
    const bool whole = has_whole_keys();
    if (leads_) {
      call_keys(at.stage, work_.k_row, work_.head, p_.shape.cu_seqlens_k ? 0 : work_.batch, whole);
    } else if (C.lengths && whole) {
      shared_.keys_full[at.stage].arrive();
    }
  }
  /// Calls V, once its place is free.
  TILEWISE_INLINE void begin_values() {
    if constexpr (C.persistent) {
      shared_.values_free.wait(((C.shares_keys ? run_.seen : run_.template tile_index<C>()) + 1) % 2);
      Machine::wave_sync();
    }
    if (C.persistent && work_.steps() == 0) {
      if (leads_ || C.lengths) shared_.values_full.arrive();
      return;
    }
    const bool whole = has_whole_keys();
    if (!leads_) {
      if (C.lengths && whole) shared_.values_full.arrive();
      return;
    }
    Barrier<Machine>& values = whole ? shared_.values_full : shared_.keys_landed;
    if (whole || C.shares_keys) values.arrive_and_expect(Shared::ValueTile::kBytes);
    copy_keys(shared_.values, p_.v_map, values, work_.k_row, work_.head, p_.shape.cu_seqlens_k ? 0 : work_.batch,
              [](int c) { return c; });
  }
  /// Once they have landed, clears rows that are no keys of the sequence: dS is 0 there, but 0 times what lies there
  /// need not be. Each lane says that its zeros are there. The first queries are on their way meanwhile.
  TILEWISE_INLINE void finish_keys() {
    if (has_whole_keys() || work_.steps() == 0 || !work_.begins_keys()) return;
    shared_.keys_landed.wait(run_.keys_parity);
    run_.keys_parity ^= 1;
    const int32_t begin = -work_.first_key, end = work_.seqlen_k - work_.first_key;
    const uint32_t stage = run_.template key_place<C>().stage;
    clear_rows_outside(shared_.keys[stage], begin, end);
    clear_rows_outside(shared_.values, begin, end);
    Machine::fence_shared_writes();
    shared_.keys_full[stage].arrive(), shared_.values_full.arrive();
  }

  /// The next tile of queries, once its stage is empty.
  TILEWISE_INLINE void load_queries() {
    const QueryPlace place = query_place<C>(work_, next_);
    const auto at = ring_place<C.stages>(run_.steps + static_cast<uint32_t>(next_));
    const int32_t first = place.tile * C.block_m;
    const bool whole = !C.lengths || first + C.block_m <= work_.seqlen_q;
    Barrier<Machine>& full = shared_.tile_ring.full[at.stage];
    // By all lanes, together: what only one of them waits for the compiler takes for a warp that has parted, which
    // keeps nothing in uniform registers.
    at.wait_empty(shared_.tile_ring);
    const int32_t head = work_.query_head + place.head;
    await_preprocess(work_.batch, head);
    Machine::wave_sync();
    if (leads_) {
      copy_queries(at.stage, work_.q_row, first, head, work_.batch, work_.first_key, whole ? full : shared_.landed);
    }
    if (!whole) {
      wait_landed();
      clear_rows_outside(shared_.queries[at.stage], 0, work_.seqlen_q - first);
      clear_rows_outside(shared_.douts[at.stage], 0, work_.seqlen_q - first);
      Machine::fence_shared_writes();
      Machine::wave_sync();
      if (leads_) full.arrive();
    }
    ++next_;
  }

 private:
  /// Of a query head of batch entry `entry`, by all lanes, once for all of its tiles that follow each other.
  TILEWISE_INLINE void await_preprocess([[maybe_unused]] int32_t entry, [[maybe_unused]] int32_t head) {
    if constexpr (C.late_preprocess) {
      const int32_t of_all = entry * static_cast<int32_t>(p_.shape.num_heads_q) + head;
      if (of_all == run_.known_head) return;
      run_.known_head = of_all;
      const int32_t last = p_.preprocess_tiles - 1;
      TILEWISE_NO_UNROLL
      for (int32_t i = 0; i <= last; i += Machine::kLanes) {
        const int32_t tile = minimum(i + Machine::lane(), last);
        Machine::await_global_together(p_.preprocess_done + of_all * p_.preprocess_tiles + tile, 1u);
      }
    }
  }
  TILEWISE_INLINE void call_keys(uint32_t stage, int32_t row, int32_t head, int32_t batch, bool whole) const {
    Barrier<Machine>& keys = whole ? shared_.keys_full[stage] : shared_.keys_landed;
    keys.arrive_and_expect(Shared::KeyTile::kBytes + (whole || C.shares_keys ? 0 : Shared::ValueTile::kBytes));
    copy_keys(shared_.keys[stage], p_.k_map, keys, row, head, batch, [](int c) { return C.key_chunk(c); });
  }
  /// place(c): where chunk c lies among the tile's.
  template <class Tile, class Place>
  TILEWISE_INLINE void copy_keys(Tile& to, const TensorMap& map, Barrier<Machine>& landed, int32_t row, int32_t head,
                                 int32_t batch, const Place& place) const {
    TILEWISE_UNROLL
    for (int c = 0; c < Tile::kChunks; ++c) {
      Machine::copy_box(to.chunk(place(c)), map, landed.state(), c * Tile::kChunkColumns, row, head, batch);
    }
  }

  template <class Tile>
  TILEWISE_INLINE void copy_rows(Tile& to, const TensorMap& map, Barrier<Machine>& landed, int32_t row, int32_t head,
                                 int32_t batch) const {
    TILEWISE_UNROLL
    for (int c = 0; c < Tile::kChunks; ++c) {
      Machine::copy_box(to.chunk(c), map, landed.state(), c * Tile::kChunkColumns, 0, row, head, batch);
    }
  }

  /// Of a query head of batch entry `entry`, whose queries begin in row q_row, beside keys from first_key on.
  TILEWISE_INLINE void copy_queries(uint32_t stage, int32_t q_row, int32_t first, int32_t head, int32_t entry,
                                    int32_t first_key, Barrier<Machine>& landed) const {
    constexpr int32_t kStatisticBytes = C.block_m * static_cast<int32_t>(sizeof(float));
    const int32_t batch = p_.shape.cu_seqlens_q ? 0 : entry;
    const int64_t statistics = (entry * p_.shape.num_heads_q + head) * p_.rows_a_head + first;
    landed.arrive_and_expect(Shared::QueryTile::kBytes + Shared::DoutTile::kBytes + 2 * kStatisticBytes +
                             bias_box_bytes());
    copy_rows(shared_.queries[stage], p_.q_map, landed, q_row + first, head, batch);
    Machine::copy_run(shared_.lse2[stage], p_.lse2 + statistics, kStatisticBytes, landed.state());
    if constexpr (C.bias_boxes) copy_bias(stage, first, head, entry, first_key, landed);
    copy_rows(shared_.douts[stage], p_.dout_map, landed, q_row + first, head, batch);
    Machine::copy_run(shared_.delta[stage], p_.delta + statistics, kStatisticBytes, landed.state());
  }

  /// Of all boxes of a bias that come with a tile of queries.
  TILEWISE_INLINE int32_t bias_box_bytes() const {
    if constexpr (!C.bias_boxes) return 0;
    return BwdBiasTile<C>::kChunks * (p_.bias_places.query ? C.block_m : 1) * kChunkRowBytes;
  }
  TILEWISE_INLINE void copy_bias(uint32_t stage, int32_t first, int32_t head, int32_t entry, int32_t first_key,
                                 Barrier<Machine>& landed) const {
    const BiasPlaces& places = p_.bias_places;
    auto& tile = shared_.bias[stage];
    TILEWISE_UNROLL
    for (int c = 0; c < BwdBiasTile<C>::kChunks; ++c) {
      Machine::copy_box(tile.chunk(c), p_.bias_map, landed.state(), first_key + c * BwdBiasTile<C>::kChunkColumns, 0,
                        places.query * first, places.head * head, places.batch * entry);
    }
  }

  TILEWISE_INLINE bool has_whole_keys() const {
    return !C.lengths || (work_.is_used(work_.first_key) && work_.is_used(work_.first_key + C.block_n() - 1));
  }
  TILEWISE_INLINE void wait_landed() {
    shared_.landed.wait(run_.landed_parity);
    run_.landed_parity ^= 1;
  }

  /// All but rows [begin, end): a piece a lane, without a branch on rows.
  template <class Tile>
  TILEWISE_INLINE static void clear_rows_outside(Tile& tile, int32_t begin, int32_t end) {
    constexpr int32_t kRows = Tile::kChunkBytes / kChunkRowBytes, kPieces = 8 * Tile::kChunks;
    constexpr int32_t kAtOnce = C.own_dq ? 1 : 4;  // with 24 registers and 192 columns 4 would spill 130 bytes
    static_assert(kRows * kPieces % (kAtOnce * Machine::kLanes) == 0);
    TILEWISE_NO_UNROLL
    for (int32_t from = Machine::lane(); from < kRows * kPieces; from += kAtOnce * Machine::kLanes) {
      TILEWISE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int32_t unit = from + i * Machine::kLanes, row = unit / kPieces;
        if (row < begin || row >= end) Machine::store_shared(tile.piece(row, unit % kPieces), Chunk{{0, 0, 0, 0}});
      }
    }
  }

  const BwdParamsOf<C>& p_;
  Shared& shared_;
  const BwdWork& work_;
  BwdRun& run_;
  int32_t next_ = 0;  // step whose tile comes next
  const bool leads_;
};

}  // namespace tilewise::device
