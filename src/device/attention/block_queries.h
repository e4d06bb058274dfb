// The queries that a block owns: (query, head) pairs of one sequence, where they lie in memory, and which keys they
// see.
#pragma once

#include "device/attention/config.h"
#include "device/attention/grid_place.h"
#include "device/attention/tensor_rows.h"

namespace tilewise::device {

/// What row r of a block is: query r of its head; query r / group of the group's head r % group; head r of the group,
/// at the block's one query.
enum BlockRows : int32_t { kQueriesOfHead, kQueriesOfGroup, kHeadsOfQuery };

constexpr BlockRows block_rows(const ForwardConfig& c) {
  return c.selects ? kHeadsOfQuery : c.pack_gqa ? kQueriesOfGroup : kQueriesOfHead;
}

template <int kRows>
struct BlockQueries {
  static constexpr int kBlockRows = kRows;
  int32_t batch, first_head, group;
  Divisor by_group;
  int32_t first_row;      // of the block
  int32_t used_rows;      // rows of used queries
  int32_t total_rows;     // rows of all queries in memory
  int32_t own_query = 0;  // the one query

  TILEWISE_INLINE BlockQueries(const TileGrid& grid, const Sequence& s, const GridPlace& place, int32_t block_m)
      : batch(place.batch), group(grid.group), by_group(grid.by_group) {
    const int32_t a_query = kRows == kQueriesOfHead ? 1 : group;
    first_head = place.head * a_query;
    if constexpr (kRows == kHeadsOfQuery) {
      const int32_t tiles = ceil_div(group, block_m);
      own_query = place.tile / tiles;
      first_row = (place.tile - own_query * tiles) * block_m;
      used_rows = own_query < s.seqlen_q ? group : 0;
      total_rows = own_query < s.all_q ? group : 0;
    } else {
      first_row = place.tile * block_m;
      used_rows = static_cast<int32_t>(s.seqlen_q) * a_query;
      total_rows = static_cast<int32_t>(s.all_q) * a_query;
    }
  }

  TILEWISE_INLINE int32_t query(int32_t row) const {
    if constexpr (kRows == kHeadsOfQuery) return own_query;
    return kRows == kQueriesOfGroup ? divide(row, by_group) : row;
  }
  /// Of rows past the last head, too.
  TILEWISE_INLINE int32_t head(int32_t row) const {
    if constexpr (kRows == kHeadsOfQuery) return first_head + minimum(row, group - 1);
    return kRows == kQueriesOfGroup ? first_head + row - query(row) * group : first_head;
  }
  TILEWISE_INLINE int32_t head_k() const { return divide(first_head, by_group); }

  /// Of the block's rows, those that stand for queries.
  TILEWISE_INLINE int32_t rows_of_block(int32_t block_m) const { return minimum(total_rows - first_row, block_m); }

  /// Where row `row` of the block stands in q (or dout); rows past the end repeat the last one.
  template <int kElement>
  TILEWISE_INLINE const ElementBits<kElement>* address_to_read(const Tensor4& t, const Sequence& s, int row) const {
    const int32_t r = minimum(first_row + row, used_rows - 1);
    return elements_of<kElement>(t) + query_offset(t, s, batch, query(r), head(r));
  }

  /// Where row `row` of the block goes in out (or dq), null past the sequence.
  template <int kElement>
  TILEWISE_INLINE ElementBits<kElement>* address_to_write(const Tensor4& t, const Sequence& s, int row) const {
    const int32_t r = first_row + row;
    if (r >= total_rows) return nullptr;
    return mutable_elements_of<kElement>(t) + query_offset(t, s, batch, query(r), head(r));
  }
};

/// Of the backward pass: whether query i is used and sees a key, or the sink.
template <class Machine>
TILEWISE_INLINE bool sees_something(const LseTensor& softmax_lse, const Sequence& s, int64_t batch, int64_t head,
                                    int64_t i) {
  if (i >= s.seqlen_q) return false;
  return Machine::load_global(softmax_lse.data + lse_offset(softmax_lse, s, batch, i, head)) != -kInfinity;
}

/// Tiles of the keys that queries [first, last] see; both are used.
template <auto C>
TILEWISE_INLINE TileRange key_tiles(const ScoreParams& p, const Sequence& s, int32_t first, int32_t last) {
  const auto tiles = [](int64_t begin, int64_t end, int64_t full_begin, int64_t full_end) {
    const auto down = [](int64_t key) { return static_cast<int32_t>(key) / C.block_n; };
    const auto up = [](int64_t key) { return ceil_div(static_cast<int32_t>(key), C.block_n); };
    return TileRange{down(begin), begin < end ? up(end) : down(begin), up(full_begin), down(full_end)};
  };
  if constexpr (!C.ranged) return tiles(0, s.seqlen_k, 0, s.seqlen_k);
  const int64_t d = diagonal_offset(p, s);
  const KeyRange of_first = visible_keys(p, s, d, first), of_last = visible_keys(p, s, d, last);
  return tiles(of_first.begin, of_last.end, of_last.begin, of_first.end);
}

/// Tiles of the keys that a block's queries see; where keys are selected, of its query's indices.
template <auto C, class Params, class Queries>
TILEWISE_INLINE TileRange tiles_of_queries(const Params& p, const Sequence& s, const Queries& queries) {
  if (queries.first_row >= queries.used_rows) return {0, 0, 0, 0};
  const int32_t first = queries.query(queries.first_row);
  if constexpr (Queries::kBlockRows == kHeadsOfQuery) {
    const KeyRange seen = visible_keys(p.score, s, diagonal_offset(p.score, s), first);
    const auto indices = static_cast<int32_t>(p.key_indices.count);
    return {0, seen.begin < seen.end ? ceil_div(indices, C.block_n) : 0, 0, 0};
  } else {
    const int32_t last_row = minimum(queries.first_row + C.block_m(), queries.used_rows) - 1;
    return key_tiles<C>(p.score, s, first, queries.query(last_row));
  }
}

}  // namespace tilewise::device
