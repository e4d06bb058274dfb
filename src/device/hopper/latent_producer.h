// The warpgroup that loads Q once and then tiles of keys, by pages, or selected ones one by one.
#pragma once

#include "device/common/selected.h"
#include "device/hopper/latent_shared.h"
#include "device/kv_cache/places.h"
#include "device/sm90/load.h"

namespace tilewise::device {

template <class Machine, HopperLatentConfig C>
class LatentProducer {
  using Shared = HopperLatentShared<Machine, C>;
  using RowTile = typename Shared::RowTile;
  using KeyTile = typename Shared::KeyTile;
  static constexpr int32_t kBoxKeys = C.keys_of_box(), kBoxes = C.kKeys / kBoxKeys;
  static constexpr int32_t kLoading = C.selects ? 4 : 1, kBoxesOfWarp = kBoxes / kLoading;  // warps that load keys
  static_assert(kBoxes * kBoxKeys == C.kKeys && kBoxesOfWarp <= 32, "boxes are lanes'");
  static constexpr bool kTileOfOnePage = C.page_size % C.kKeys == 0 && !C.selects;  // 0: contiguous

 public:
  TILEWISE_INLINE LatentProducer(const HopperLatentParams& params, Shared& shared, const LatentWork& work)
      : p_(params),
        shared_(shared),
        work_(work),
        rank_(C.clustered ? Machine::rank_in_cluster() : 0),
        places_{params.cache.block_table + work.batch * params.cache.block_table_stride, work.k_row, 0, work.seqlen_k,
                static_cast<int32_t>(params.cache.rows)} {}

  /// By four warps: the first one loads tiles, the others clear what lies past the end of a sequence. Where keys are
  /// selected, all load, since a copy of one row takes a warp as long as one of many, and the second one tells which
  /// the query sees; of the others zeros come.
  TILEWISE_INLINE void run() {
    const bool loads = Machine::thread() < 32 * kLoading;
    if (Machine::thread() == 0) load_rows();
    if (loads) look_up_page(work_.begin);
    RingPlace<C.kStages> place;
    TILEWISE_NO_UNROLL
    for (int32_t tile = work_.begin; tile < work_.end; ++tile, place.advance()) {
      if (Machine::thread() >= 32) prepare(place, tile);
      if (loads) load_keys(place, tile);
    }
  }

 private:
  /// What warps but the first one do for a tile.
  TILEWISE_INLINE void prepare(const RingPlace<C.kStages>& place, int32_t tile) {
    wait_for_tile_before(place, shared_.last);
    if (kTileOfOnePage && Machine::thread() == 32) call_rows(tile);
    if constexpr (C.selects) {
      if (Machine::thread() < 64) tell_seen(tile);
    } else {
      const int32_t used = work_.seqlen_k - tile * C.kKeys;
      // Weights past the end are 0, but 0 times what lies there need not be.
      if (used < C.kKeys) clear_values(place, maximum(used, 0));
    }
    arrive_as_warp(shared_.last.full[place.stage]);
  }

  TILEWISE_INLINE void load_rows() {
    const int32_t rows = p_.order.queries_of_tile * p_.order.heads_of_tile;
    const int32_t batch = p_.shape.cu_seqlens_q ? 0 : work_.batch;
    shared_.rows_landed.arrive_and_expect(RowTile::kChunks * rows * kChunkRowBytes);
    load_tile(shared_.rows, p_.q_map, shared_.rows_landed, 0, work_.first_head, work_.q_row + work_.first_query, batch);
  }

  /// Of this lane's box of a tile, a tile ahead: a copy that waits for its table takes twice as long.
  TILEWISE_INLINE void look_up_page(int32_t tile) {
    if constexpr (C.selects) return look_up_selected(tile);
    page_ = work_.cache_row;
    if (C.page_size == 0 || work_.seqlen_k == 0 || Machine::lane() >= kBoxes) return;
    page_ = places_.page_of(places_.place_of(first_key(tile)));
  }
  /// Of this lane's key, past the end of the tensor where the query does not see it: zeros come from there.
  TILEWISE_INLINE void look_up_selected(int32_t tile) {
    page_ = work_.cache_row, within_ = -1;
    if (Machine::lane() >= kBoxesOfWarp) return;
    const int32_t key = selected(tile, own_box()), place = places_.place_of(key);
    if (key < 0) return;
    within_ = places_.within_page(place);
    if constexpr (C.page_size != 0) page_ = places_.page_of(place);
  }
  TILEWISE_INLINE static int32_t own_box() {
    return Machine::thread() / 32 % kLoading * kBoxesOfWarp + Machine::lane();
  }
  /// Key i of a tile, or -1.
  TILEWISE_INLINE int32_t selected(int32_t tile, int32_t i) const {
    struct {
      int32_t begin, end;
    } const seen{0, work_.seen_end};
    const int64_t number = int64_t{tile} * C.kKeys + i;
    if (number >= p_.key_indices.count) return -1;
    return selected_key(
        Machine::load_global(p_.key_indices.row(work_.batch, work_.q_row + work_.first_query, 0) + number), seen);
  }
  /// By a warp. A word is written anew when the tile two before has landed, and so the one four before is done with.
  TILEWISE_INLINE void tell_seen(int32_t tile) {
    SeenKeys seen{};
    TILEWISE_UNROLL
    for (int i = 0; i < 2; ++i) seen.word[i] = Machine::lanes_where(selected(tile, 32 * i + Machine::lane()) >= 0);
    if (Machine::lane() == 0) Machine::store_shared(&shared_.seen[tile % (2 * C.kStages)], seen);
  }
  /// Of a tile whose place in shared memory is not yet free, into L2: this block's share of what all row tiles of a
  /// sequence read. In whole rows they come from memory sooner than by boxes of 128 bytes a row. The first tiles of a
  /// block have their places at once.
  TILEWISE_INLINE void call_rows(int32_t tile) const {
    if (tile < work_.begin + C.kStages || p_.k.seq_stride != C.head_dim) return;
    const int32_t sharers = p_.order.row_tiles, share = Machine::block() % sharers, first = tile * C.kKeys;
    const int32_t begin = first + C.kKeys * share / sharers;
    const int32_t end = minimum(first + C.kKeys * (share + 1) / sharers, work_.seqlen_k);
    if (begin >= end) return;
    const int64_t row = C.page_size == 0 ? work_.cache_row : places_.page_of(places_.place_of(begin));
    const uint16_t* const keys = static_cast<const uint16_t*>(p_.k.data) + row * p_.k.batch_stride;
    Machine::prefetch_run(keys + int64_t{within(begin)} * C.head_dim,
                          (end - begin) * C.head_dim * static_cast<int32_t>(sizeof(uint16_t)));
  }
  /// Of a key, in its page or in the cache's row of the sequence.
  TILEWISE_INLINE int32_t within(int32_t key) const {
    return C.page_size == 0 ? work_.k_row + key : places_.within_page(key);
  }
  TILEWISE_INLINE static int32_t first_key(int32_t tile) { return tile * C.kKeys + Machine::lane() * kBoxKeys; }

  TILEWISE_INLINE void load_keys(const RingPlace<C.kStages>& place, int32_t tile) {
    // A box past the end loads whatever is near.
    if constexpr (!C.selects) within_ = within(first_key(tile));
    const bool loads_last = !C.clustered || static_cast<int32_t>(place.stage) == rank_;
    if constexpr (C.clustered) {
      TILEWISE_UNROLL
      for (int i = 0; i < C.kConsumers; ++i) {
        if (i != rank_) expect_chunks(place, shared_.half[i], Shared::kHalfChunks);
      }
      if (!loads_last) expect_chunks(place, shared_.last, 1);
    }
    TILEWISE_UNROLL
    for (int i = 0; i < C.kConsumers; ++i) {
      if (C.clustered && i != rank_) continue;
      load_chunks(place, shared_.half[i], i * Shared::kHalfChunks, Shared::kHalfChunks);
    }
    if (loads_last) load_chunks(place, shared_.last, Shared::kLastChunk, 1);
    if (tile + 1 < work_.end) look_up_page(tile + 1);
  }

  /// Until the tile that lay in a stage before has landed there: arrivals count for the next one from then on.
  TILEWISE_INLINE static void wait_for_tile_before(const RingPlace<C.kStages>& place, typename Shared::KeyRing& ring) {
    ring.full[place.stage].wait(place.parity ^ 1);
  }
  /// What the other block of the cluster loads. One lane alone waits: others might come when this tile has landed,
  /// too.
  TILEWISE_INLINE static void expect_chunks(const RingPlace<C.kStages>& place, typename Shared::KeyRing& ring,
                                            int count) {
    if (Machine::thread() != 0) return;
    wait_for_tile_before(place, ring);
    ring.full[place.stage].arrive_and_expect(count * KeyTile::kChunkBytes);
  }

  TILEWISE_INLINE void load_chunks(const RingPlace<C.kStages>& place, typename Shared::KeyRing& ring, int first,
                                   int count) {
    place.wait_empty(ring);
    Barrier<Machine>& landed = ring.full[place.stage];
    if (Machine::thread() == 0) landed.arrive_and_expect(count * KeyTile::kChunkBytes);
    Machine::wave_sync();
    if (Machine::lane() >= kBoxesOfWarp) return;
    TILEWISE_UNROLL
    for (int c = first; c < first + count; ++c) {
      uint8_t* const to = shared_.keys[place.stage].chunk(c) + own_box() * kBoxKeys * kChunkRowBytes;
      load_box<C.blocks_of_cluster()>(to, p_.k_map, landed, c * KeyTile::kChunkColumns, within_, 0, page_);
    }
  }

  TILEWISE_INLINE void clear_values(const RingPlace<C.kStages>& place, int32_t first_row) {
    constexpr int kClearing = kWarpgroupThreads - 32;
    // A wait for a phase is over, too, while the phase before is not: the last chunk of the tile before in this stage
    // may have landed and its values not, whose rows would be cleared. They have where its weights are made.
    shared_.weights[place.stage].wait(place.parity ^ 1);
    for (auto& ring : shared_.half) place.wait_full(ring);
    for (int c = 0; c < Shared::kLastChunk; ++c) {
      uint8_t* const chunk = shared_.keys[place.stage].chunk(c);
      for (int at = first_row * kChunkRowBytes + (Machine::thread() - 32) * 16; at < KeyTile::kChunkBytes;
           at += kClearing * 16) {
        Machine::store_shared(chunk + at, Chunk{{0, 0, 0, 0}});
      }
    }
    Machine::fence_shared_writes();
  }

  const HopperLatentParams& p_;
  Shared& shared_;
  const LatentWork& work_;
  const int32_t rank_;  // in the cluster
  CachePlaces<Machine, C.page_size> places_;
  int32_t page_, within_;
};

}  // namespace tilewise::device
