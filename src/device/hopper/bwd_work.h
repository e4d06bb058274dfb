// What a block of the backward kernel works on: its keys, and which tiles of queries see them, or a part of these.
#pragma once

#include "device/attention/grid_place.h"
#include "device/hopper/config.h"
#include "device/hopper/params.h"
#include "device/hopper/tile_order.h"
#include "device/hopper/tile_walk.h"
#include "device/sm90/mbarrier.h"

namespace tilewise::device {

template <auto C>
using BwdParamsOf = WithTablesOf<C, HopperBwdParams>;

/// Tiles of queries [begin, end) that see one of some keys, and those of them in which each row is a query that sees
/// every key.
struct QueryTiles {
  int32_t begin, end, full_begin, full_end;
  TILEWISE_INLINE int32_t count() const { return end - begin; }
};

/// Keys are counted from the used part of a sequence; rows of a block are rows in memory.
struct BwdWork {
  int32_t tile, head, batch;         // of keys; a key head
  int32_t part;                      // of the tiles of queries
  int32_t rises;                     // whether dq's order begins with the first keys: from_last()
  int32_t share;                     // of the key head's query heads, in the order in which they are scheduled
  int32_t member;                    // of the share: the query head that is worked on, where they come one by one
  int32_t group, query_head;         // query heads that are worked on, and the first one
  int32_t q_row, k_row;              // where the used queries and the block's first row start, in rows of the tensors
  int32_t first_key;                 // of the block; negative where padding comes first
  int32_t seqlen_q, seqlen_k, rows;  // used ones; rows of the block that are the sequence's
  int32_t rows_q;                    // the sequence's rows of queries
  int32_t leftpad;                   // rows of memory in front of key 0
  int32_t diagonal;                  // query i stands at key i + diagonal
  KeyBand band;
  QueryTiles queries;  // of a head, that see a key of the block
  // If dq's sums have an order: how many of them, the last ones to be visited, see a key of the tile of keys that adds
  // before this one, and none of the one that adds after it, so that their sums begin elsewhere, and end here.
  int32_t tiles_behind, tiles_ended;

  TILEWISE_INLINE bool is_used(int32_t key) const { return key >= 0 && key < seqlen_k; }
  TILEWISE_INLINE int32_t steps() const { return queries.count() * group; }
  /// Whether its tiles of queries come from the last one on.
  template <auto C>
  TILEWISE_INLINE bool from_last() const {
    return C.both_ways && rises;
  }
  /// The tile of queries of a head's step, and how far it is from there to the next one's.
  template <auto C>
  TILEWISE_INLINE int32_t query_tile(int32_t step) const {
    return from_last<C>() ? queries.end - 1 - step : queries.begin + step;
  }
  template <auto C>
  TILEWISE_INLINE int32_t query_stride() const {
    return from_last<C>() ? -1 : 1;
  }
  /// Whether it is the first query head, or the last one, for which the block has this tile of keys. One that no query
  /// sees comes once.
  TILEWISE_INLINE bool begins_keys() const { return member == 0; }
  template <auto C>
  TILEWISE_INLINE bool ends_keys(const BwdParamsOf<C>& p) const {
    return !C.grouped || member + 1 == p.group || queries.count() == 0;
  }
};

/// The same in all lanes, and known as such.
template <class Machine>
TILEWISE_INLINE uint32_t agreed(uint32_t number) {
  return static_cast<uint32_t>(Machine::agreed(static_cast<int32_t>(number)));
}

/// How far a block has come that works on one tile of keys after the other.
struct BwdRun {
  int32_t item = 0;            // in the order of tiles of keys
  int32_t member = 0;          // of the query heads for which the block has that tile
  uint32_t index = 0;          // of those of this block, a tile as many times as it has query heads
  uint32_t tiles = 0;          // how many before, each once
  uint32_t seen = 0;           // how many of these are seen by queries
  uint32_t steps = 0;          // of all before
  int32_t known_head = -1;     // the query head whose preprocess has been waited for last
  bool early = false;          // the one before has called what comes first of this one
  uint32_t fetched = 0;        // parities of the barriers for sums that are fetched, a bit each
  uint32_t landed_parity = 0;  // of the barrier for queries that are cleared behind a sequence's end
  uint32_t keys_parity = 0;    // and of that for keys

  /// Where K lies.
  template <auto C>
  TILEWISE_INLINE RingPlace<C.key_stages()> key_place() const {
    return ring_place<C.key_stages()>(seen);
  }

  /// Numbers from the turn before are not known to be the same in all lanes, and all that is computed from them would
  /// leave the uniform registers (60 bytes of spills and 40 moves more in each step).
  template <class Machine>
  TILEWISE_INLINE void agree() {
    index = agreed<Machine>(index), steps = agreed<Machine>(steps), seen = agreed<Machine>(seen);
  }
  template <auto C>
  TILEWISE_INLINE uint32_t tile_index() const {
    return C.grouped ? tiles : index;
  }
  /// To the next tile of keys, or to the next query head.
  template <auto C>
  TILEWISE_INLINE void advance(const BwdParamsOf<C>& p, const BwdWork& work) {
    early = work.steps() > 0;
    ++index, steps += static_cast<uint32_t>(work.steps());
    if (!work.ends_keys<C>(p)) return;
    ++tiles, seen += early ? 1 : 0;
  }
};

/// A tile of queries of one head of the group.
struct QueryPlace {
  int32_t tile, head;  // the head counts from the group's first one
};
/// Of a block's step.
template <auto C>
TILEWISE_INLINE QueryPlace query_place(const BwdWork& work, int32_t step) {
  if constexpr (C.persistent) return {work.query_tile<C>(step), 0};
  const int32_t head = step / work.queries.count();
  return {work.queries.begin + step - head * work.queries.count(), head};
}

/// Of keys [first_key, first_key + count).
template <auto C>
TILEWISE_INLINE QueryTiles query_tiles(const BwdWork& work, int32_t first_key, int32_t count) {
  const int32_t first = maximum(first_key, 0), last = minimum(first_key + count, work.seqlen_k) - 1;
  if (first > last || work.seqlen_q == 0) return {0, 0, 0, 0};
  const auto clamped = [&](int32_t query) { return maximum(0, minimum(query, work.seqlen_q)); };
  const int32_t whole = ceil_div(work.seqlen_q, C.block_m);
  int32_t begin = 0, end = work.seqlen_q, full_begin = 0, full_end = whole;  // the last one in tiles
  if constexpr (C.ranged) {
    begin = clamped(first - work.diagonal - work.band.high);
    full_begin = clamped(last - work.diagonal - work.band.high);
    if constexpr (C.windowed) {
      end = clamped(last - work.diagonal - work.band.low + 1);
      // Not asked of the clamped number: NVRTC 13.0 takes the answer from the minimum's own predicate, and gets it
      // wrong.
      const int32_t blind = first - work.diagonal - work.band.low + 1;
      full_end = blind >= work.seqlen_q ? whole : maximum(blind, 0) / C.block_m;
    }
  }
  if (begin >= end) return {0, 0, 0, 0};
  // Rows past the end weigh nothing, but 0 times a key or a value that no query sees need not be 0.
  if constexpr (C.partial_rows) full_end = minimum(full_end, work.seqlen_q / C.block_m);
  QueryTiles tiles{begin / C.block_m, ceil_div(end, C.block_m), ceil_div(full_begin, C.block_m), full_end};
  tiles.full_begin = minimum(tiles.full_begin, tiles.end);
  if (last - first + 1 < count) tiles.full_begin = tiles.full_end = tiles.end;  // rows that are no keys are hidden
  return tiles;
}

/// Those of `tiles` that lie in [begin, end).
TILEWISE_INLINE QueryTiles tiles_within(const QueryTiles& tiles, int32_t begin, int32_t end) {
  QueryTiles within = tiles;
  within.end = minimum(tiles.end, end);
  within.begin = minimum(maximum(tiles.begin, begin), within.end);
  within.full_begin = minimum(tiles.full_begin, within.end);
  return within;
}

/// Whether tiles at either end that mask_mod hides are left out. Not where dq's sums have an order: which tiles of keys
/// add to a tile of queries is known by their numbers then.
template <auto C>
constexpr bool leaves_out_hidden() {
  return FunctionsOf<C>::kSkips && !C.ordered;
}

TILEWISE_INLINE int32_t key_tiles(const TileOrder& order) {
  return order.num_tiles * order.num_heads * order.batch_size;
}

/// Whether tiles of keys at that place begin with the first keys, in an order both ways: of the last set of heads, and
/// of a group's heads those that come last.
template <auto C>
TILEWISE_INLINE bool rises_at(const BwdParamsOf<C>& p, const OrderPlace& place) {
  if constexpr (!C.both_ways) return false;
  const int32_t head = place.batch * p.order.num_heads + place.head;
  return place.tile < p.tiles && head >= p.divisors.last_set * p.order.heads_at_once;
}

/// Until the launch before has ended, which preprocesses and clears words. Where later heads' are made still, each
/// head's are waited for, and words have been cleared before blocks of this launch begin.
template <class Machine, auto C>
TILEWISE_INLINE void wait_for_preprocess() {
  if constexpr (!C.late_preprocess) wait_for_step_before<Machine>();
}

/// Where tile `index` of keys stands. The first keys have the most queries under a causal mask and begin first, unless
/// dq's sums have an order: it is that of the blocks, and the last keys' visit a tile of queries before the others come
/// to it. Of an order both ways the last heads' begins with the first keys all the same, which visit the last queries
/// first: those that are worked on together wait for each other then, but the last tiles of all are short ones.
template <auto C>
TILEWISE_INLINE OrderPlace key_place(const BwdParamsOf<C>& p, int32_t index) {
  OrderPlace place = place_in_order(p.order, p.divisors, index);
  if constexpr (!C.ordered) {
    place.tile = p.order.num_tiles - 1 - place.tile;
  } else if (rises_at<C>(p, place)) {
    place.tile = p.tiles - 1 - place.tile;
  }
  return place;
}

template <class Machine, auto C>
TILEWISE_INLINE BwdWork work_at(const BwdParamsOf<C>& p, const OrderPlace& place, int32_t member, int32_t part = 0) {
  const int32_t parts = C.split ? p.order.num_splits : 1;
  BwdWork work{};
  work.part = part;
  work.tile = place.tile;
  work.head = place.head;
  work.batch = place.batch;
  work.rises = rises_at<C>(p, place);
  work.group = C.persistent ? 1 : p.group;
  work.query_head = place.head * work.group;
  if constexpr (C.grouped) {
    const int32_t row = divide(place.tile, p.divisors.by_tiles);
    work.tile -= row * p.tiles;
    work.share = C.ordered ? p.shares - 1 - row : row;
    work.member = member;
    work.query_head = (place.head * p.shares + work.share) * p.group + member;
  }
  const Sequence s = sequence_at<C>(p.shape, place.batch);
  const int32_t first_row = work.tile * C.block_n(), leftpad = static_cast<int32_t>(s.leftpad);
  work.q_row = static_cast<int32_t>(s.q_row);
  work.k_row = static_cast<int32_t>(s.k_row) - leftpad + first_row;
  work.first_key = first_row - leftpad;
  work.leftpad = leftpad;
  work.seqlen_q = static_cast<int32_t>(s.seqlen_q);
  work.seqlen_k = static_cast<int32_t>(s.seqlen_k);
  work.rows = minimum(static_cast<int32_t>(s.all_k) - first_row, C.block_n());
  work.rows_q = static_cast<int32_t>(s.all_q);
  work.diagonal = static_cast<int32_t>(diagonal_offset(p.score, s));
  work.band = key_band(p.score);
  work.queries = query_tiles<C>(work, work.first_key, C.block_n());
  if constexpr (leaves_out_hidden<C>()) {
    const SeenRange seen = TileRow<Machine, C>(p, work.batch, work.head, work.tile).seen_by_any();
    work.queries = tiles_within(work.queries, seen.begin, seen.end);
  }
  if constexpr (C.split) {
    const int32_t first = work.queries.begin, count = work.queries.count();
    work.queries =
        tiles_within(work.queries, first + count * work.part / parts, first + count * (work.part + 1) / parts);
  }
  if constexpr (C.ordered) {
    const QueryTiles behind = query_tiles<C>(work, work.first_key + C.block_n(), C.block_n());
    const QueryTiles before = query_tiles<C>(work, work.first_key - C.block_n(), C.block_n());
    if (work.from_last<C>()) {
      work.tiles_behind = before.count() > 0 ? before.end - work.queries.begin : 0;
      work.tiles_ended = (behind.count() > 0 ? behind.begin : work.queries.end) - work.queries.begin;
    } else {
      work.tiles_behind = behind.count() > 0 ? work.queries.end - behind.begin : 0;
      work.tiles_ended = work.queries.end - (before.count() > 0 ? before.end : work.queries.begin);
    }
  }
  return work;
}

template <class Machine, auto C>
TILEWISE_INLINE BwdWork find_work(const BwdParamsOf<C>& p, int32_t block, int32_t member = 0) {
  const int32_t parts = C.split ? p.order.num_splits : 1;  // of a tile they run fastest
  const int32_t index = C.split ? divide(block, p.divisors.by_splits) : block;
  return work_at<Machine, C>(p, key_place<C>(p, index), member, block - index * parts);
}

}  // namespace tilewise::device
