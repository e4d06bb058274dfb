// Which tiles of queries a block works on, in which order, and which tiles of keys they see.
#pragma once

#include "device/hopper/forward_shared.h"
#include "device/hopper/params.h"
#include "device/hopper/tile_order.h"
#include "device/hopper/tile_walk.h"
#include "device/kv_cache/sequence.h"
#include "device/sm90/tile_counter.h"

namespace tilewise::device {

template <auto C>
using ForwardParamsOf = WithTablesOf<C, HopperForwardParams>;

/// Tiles of keys [begin, end).
struct KeyTiles {
  int32_t begin, end;
};

/// Tiles that hold a key which one of the queries [first, last] sees; perhaps none.
template <auto C, class Number>
TILEWISE_INLINE KeyTiles seen_tiles(const KeyBand& band, const WorkTileOf<Number>& work, int32_t first, int32_t last) {
  int32_t begin = 0, end = work.seqlen_k;
  if constexpr (C.windowed) begin = maximum(first + work.diagonal + band.low, 0);
  if constexpr (C.ranged) end = minimum(last + work.diagonal + band.high + 1, end);
  return {begin / C.block_n, ceil_div(maximum(end, 0), C.block_n)};
}

/// Tiles of which each query in [first, last] sees every key.
template <auto C, class Number>
TILEWISE_INLINE KeyTiles full_tiles(const KeyBand& band, const WorkTileOf<Number>& work, int32_t first, int32_t last) {
  int32_t begin = 0, end = work.seqlen_k;
  if constexpr (C.windowed) begin = maximum(last + work.diagonal + band.low, 0);
  if constexpr (C.ranged) end = maximum(minimum(first + work.diagonal + band.high + 1, end), 0);
  return {ceil_div(begin, C.block_n), end / C.block_n};
}

/// Hands out tiles of queries, each with the keys it sees: scheduled beforehand, or from a counter in memory. The
/// blocks of a cluster have neighbouring ones, with the keys that either sees. Used by one thread.
template <class Machine, auto C>
class WorkSource {
  static constexpr int32_t kBlocks = C.blocks_of_cluster();
  static_assert(kBlocks == 1 || !C.dynamic, "no counter tells the other block");

 public:
  TILEWISE_INLINE explicit WorkSource(const ForwardParamsOf<C>& params) : p_(params), counter_(params.tile_counter) {
    const TileOrder& order = p_.order;
    total_ = order.num_tiles * order.num_heads * order.batch_size * parts();
    next_ = cluster();
  }

  /// The next tile with rows in memory. ask() comes between two of them.
  TILEWISE_INLINE WorkTile next() {
    for (;; ask()) {
      // As many numbers are asked for as there are tiles; the first ones are the blocks' own.
      if (C.dynamic && next_ == total_ - 1 + clusters()) counter_.close();
      if (next_ >= total_) break;
      WorkTile work = place(next_);
      if (find_keys(work)) return work;
    }
    WorkTile none{};
    none.tile = WorkTile::kNoMore;
    return none;
  }

  /// For the number of the next tile: once some copies of this one are on their way, which a closed counter would hold
  /// up.
  TILEWISE_INLINE void ask() {
    if constexpr (C.dynamic) {
      next_ = counter_.next() + clusters();
    } else {
      // Every round begins one block further on, lest a block gets the last tile of every head.
      ++round_;
      next_ = round_ * clusters() + (cluster() + round_) % clusters();
    }
  }

 private:
  /// A block alone counts as one.
  TILEWISE_INLINE static int32_t clusters() { return Machine::blocks() / kBlocks; }
  TILEWISE_INLINE static int32_t cluster() { return Machine::block() / kBlocks; }
  TILEWISE_INLINE int32_t parts() const { return C.split ? p_.order.num_splits : 1; }
  /// Parts of a tile's keys run fastest.
  TILEWISE_INLINE WorkTile place(int32_t index) const {
    const OrderPlace at = place_in_order(p_.order, C.split ? index / parts() : index);
    WorkTile work{};
    work.tile = at.tile * kBlocks, work.head = at.head, work.batch = at.batch;
    if constexpr (C.clustered) work.tile += Machine::rank_in_cluster();
    if constexpr (C.split) work.part = index % parts();
    return work;
  }
  /// False where the sequence has no such tile.
  TILEWISE_INLINE bool find_keys(WorkTile& work) const {
    CachedSequence s{all_of_entry(p_.shape), {}};
    if constexpr (C.cached) {
      s = attended_sequence<C>(p_.shape, p_.cache, work.batch);
    } else if constexpr (C.lengths) {
      static_cast<Sequence&>(s) = sequence_of(p_.shape, work.batch);
    }
    work.q_row = static_cast<int32_t>(s.q_row);
    work.k_row = static_cast<int32_t>(s.k_row);
    work.leftpad = static_cast<int32_t>(s.leftpad);
    work.seqlen_q = static_cast<int32_t>(s.seqlen_q);
    work.seqlen_k = static_cast<int32_t>(s.seqlen_k);
    work.all_q = static_cast<int32_t>(s.all_q);
    work.diagonal = static_cast<int32_t>(diagonal_offset(p_.score, s));
    work.k_batch = work.batch;
    if constexpr (C.cached) {
      if (C.page_size == 0) work.k_batch = static_cast<int32_t>(s.cache.cache_row);
    } else if constexpr (C.lengths) {
      if (p_.shape.cu_seqlens_k) work.k_batch = 0;
    }
    const int32_t queries = kBlocks * C.consumers() * p_.order.queries_per_warpgroup;  // of the cluster
    const int32_t first = work.tile / kBlocks * queries, last = minimum(first + queries, work.seqlen_q) - 1;
    if (first >= work.all_q) return false;
    const KeyTiles tiles = seen_tiles<C>(key_band(p_.score), work, first, last);
    // A tile that sees nothing takes one all the same, whose every score is hidden.
    work.begin = first <= last ? tiles.begin : 0;
    work.end = first <= last && tiles.end > work.begin ? tiles.end : work.begin + 1;
    if constexpr (C.windowed && C.page_size != 0) {
      work.first_key = maximum(first + work.diagonal + key_band(p_.score).low, 0);
    }
    if constexpr (C.split) take_part(work);
    if constexpr (lists_tiles<C>()) {
      const WalkStart start = walk_start<Machine, C>(p_, work);
      work.first_entry = static_cast<int32_t>(start.entry), work.first_key = start.next;
    }
    return true;
  }
  /// Leaves of its tiles of keys those of one part. A part without any takes the first tile and hides it: what it
  /// stores is read.
  TILEWISE_INLINE void take_part(WorkTile& work) const {
    const int32_t first = work.begin, count = work.end - work.begin;
    work.begin = first + count * work.part / parts();
    work.end = first + count * (work.part + 1) / parts();
    if (work.begin == work.end) work.begin = 0, work.end = 1, work.seqlen_k = 0;
  }

  const ForwardParamsOf<C>& p_;
  TileCounter<Machine> counter_;
  int32_t total_, next_, round_ = 0;
};

}  // namespace tilewise::device
