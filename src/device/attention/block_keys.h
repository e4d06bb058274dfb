// The keys that a block of the backward pass owns: where they lie, and which queries see them.
#pragma once

#include "device/attention/bwd_scores.h"
#include "device/attention/grid_place.h"
#include "device/attention/seen_tiles.h"
#include "device/attention/tensor_rows.h"

namespace tilewise::device {

/// A tile of queries of one head, and how many came before it.
struct QueryPosition {
  int32_t step, tile, head;
  /// The next tile of the head, or the next head's first. Counted, since a division a step costs more.
  TILEWISE_INLINE QueryPosition next(const TileRange& t) const {
    return tile + 1 < t.end ? QueryPosition{step + 1, tile + 1, head} : QueryPosition{step + 1, t.begin, head + 1};
  }
};

/// Where a block's keys stand in k, v, dk and dv.
struct KeyRows {
  Sequence sequence;
  GridPlace place;
  int32_t first_key;  // of the block; rows are counted in memory, keys from the used part: may be negative

  TILEWISE_INLINE KeyRows(const Sequence& s, const GridPlace& at, int32_t block_n)
      : sequence(s), place(at), first_key(at.tile * block_n - static_cast<int32_t>(s.leftpad)) {}

  TILEWISE_INLINE bool is_used(int32_t key) const { return key >= 0 && key < static_cast<int32_t>(sequence.seqlen_k); }
  TILEWISE_INLINE bool used(int row) const { return is_used(first_key + row); }

  /// Where row `row` of the block stands in k (or v); rows past either end repeat the last one there.
  template <int kElement>
  TILEWISE_INLINE const ElementBits<kElement>* address_to_read(const Tensor4& t, int row) const {
    const RowSource<kElement> source = key_source<kElement>(t, sequence, place.batch, place.head, 0);
    const int64_t key = maximum(0, minimum(first_key + row, source.rows - 1));
    return source.data + key * source.stride;
  }

  /// Where row `row` of the block goes in dk (or dv), null past the sequence.
  template <int kElement>
  TILEWISE_INLINE ElementBits<kElement>* address_to_write(const Tensor4& t, int row) const {
    if (first_key + row + sequence.leftpad >= sequence.all_k) return nullptr;
    const int64_t at =
        place.batch * t.batch_stride + (sequence.k_row + first_key + row) * t.seq_stride + place.head * t.head_stride;
    return mutable_elements_of<kElement>(t) + at;
  }
};

/// A block's keys, and the queries of the group's heads that see them. kHidesUnused: where dq sums over
/// them, rows that are no keys must be hidden.
template <auto C, class Params, bool kHidesUnused>
struct BlockKeys : KeyRows {
  static constexpr bool kInARow = true;
  const Params& p;
  int32_t diagonal, group;
  VisibleBand band;

  TILEWISE_INLINE BlockKeys(const Params& params, const Sequence& s, const GridPlace& at, int32_t block_n)
      : KeyRows(s, at, block_n),
        p(params),
        diagonal(static_cast<int32_t>(diagonal_offset(params.score, s))),
        group(params.grid.group),
        band(visible_band(params.score, s)) {}

  /// Tiles of all heads of the group.
  TILEWISE_INLINE int32_t steps(const TileRange& t) const { return t.count() * group; }
  TILEWISE_INLINE QueryPosition position(const TileRange& t, int32_t step) const {
    if (step == 0) return {0, t.begin, place.head * group};
    return {step, t.begin + step % t.count(), place.head * group + step / t.count()};
  }

  TILEWISE_INLINE TileRange tiles(int32_t block_n) const {
    const auto seqlen_q = static_cast<int32_t>(sequence.seqlen_q), seqlen_k = static_cast<int32_t>(sequence.seqlen_k);
    const int32_t first = maximum(first_key, 0), last = minimum(first_key + block_n, seqlen_k) - 1;
    if (first > last || seqlen_q == 0) return {0, 0, 0, 0};
    int32_t begin = 0, end = seqlen_q, all_begin = 0, all_end = seqlen_q;
    if constexpr (C.ranged) {
      begin = clamp_query(first - diagonal - band.high);
      end = clamp_query(last - diagonal - band.low + 1);
      all_begin = clamp_query(last - diagonal - band.high);
      all_end = clamp_query(first - diagonal - band.low + 1);
    }
    if (begin >= end) return {0, 0, 0, 0};
    return {begin / C.block_m, ceil_div(end, C.block_m), ceil_div(all_begin, C.block_m), all_end / C.block_m};
  }

  TILEWISE_INLINE int32_t clamp_query(int32_t i) const {
    return maximum(0, minimum(i, static_cast<int32_t>(sequence.seqlen_q)));
  }

  /// What row `row` of the block is, and column `col` of a tile of queries.
  TILEWISE_INLINE int32_t key_of(int row) const { return first_key + row; }
  TILEWISE_INLINE int32_t query_of(const QueryPosition& at, int col) const { return at.tile * C.block_m + col; }
  TILEWISE_INLINE int32_t head_of(const QueryPosition& at, int) const { return at.head; }

  /// The rows of a tensor that tiles of queries are made of, from the first one's on.
  template <int kElement>
  TILEWISE_INLINE RowSource<kElement> columns_of(const Tensor4& t, const QueryPosition& at, int64_t cols) const {
    return query_source<kElement>(t, sequence, place.batch, at.head, cols);
  }

  /// What the scores of a tile's column depend on, from what those of its head do.
  TILEWISE_INLINE RowOf<C> scores_of_head(const QueryPosition& at) const {
    return row_score<C>(p.score, p.shape.num_heads_q, sequence, place.batch, at.head, 0);
  }
  TILEWISE_INLINE RowOf<C> scores_of(const RowOf<C>& of_head, const QueryPosition& at, int col) const {
    return query_score(of_head, query_of(at, col));
  }

 private:
  /// What the scores of a query depend on, from what those of its head's query 0 do.
  TILEWISE_INLINE RowOf<C> query_score(const RowOf<C>& of_head, int32_t query) const {
    RowOf<C> row = of_head;
    row.query = query;
    row.diagonal = query + diagonal;
    if constexpr (C.bias_type != kBiasNone) {
      row.bias += minimum<int64_t>(query, sequence.seqlen_q - 1) * p.score.bias.query_stride;
    }
    return row;
  }

 public:
  /// Whether a query sees a key. Rows of dk and dv that are no keys are not stored, whatever they sum up; queries past
  /// the end have a P of 0, but 0 times a NaN is one.
  TILEWISE_INLINE bool sees(int32_t query, int32_t key) const {
    if (kHidesUnused && !is_used(key)) return false;
    return !C.ranged || (query < sequence.seqlen_q && band.holds(key - (query + diagonal)));
  }
};

}  // namespace tilewise::device
