// The keys that a block of the backward pass owns: where they lie, and which queries see them.
#pragma once

#include "device/portable/block_rows.h"
#include "device/portable/scores.h"

namespace tilewise::device {

/// A tile of queries of one head, and how many came before it.
struct QueryPosition {
  int32_t step, tile, head;
  /// The next tile of the head, or the next head's first. Counted, since a division a step costs more.
  TILEWISE_INLINE QueryPosition next(const StreamedTiles& t) const {
    return tile + 1 < t.end ? QueryPosition{step + 1, tile + 1, head} : QueryPosition{step + 1, t.begin, head + 1};
  }
};

template <KernelConfig C>
struct KeyBlock {
  const AttentionParams& p;
  Sequence sequence;
  GridPlace place;
  int32_t first_key;  // of the block; rows are counted in memory, keys from the used part: may be negative
  int32_t diagonal, group;
  VisibleBand band;

  TILEWISE_INLINE KeyBlock(const AttentionParams& params, const Sequence& s, const GridPlace& at, int32_t block_rows)
      : p(params),
        sequence(s),
        place(at),
        first_key(at.tile * block_rows - static_cast<int32_t>(s.leftpad)),
        diagonal(static_cast<int32_t>(diagonal_offset(params, s))),
        group(static_cast<int32_t>(params.num_heads_q / params.num_heads_k)),
        band(visible_band(params, s)) {}

  /// StreamedTiles of all heads of the group.
  TILEWISE_INLINE int32_t steps(const StreamedTiles& t) const { return t.count() * group; }
  TILEWISE_INLINE QueryPosition position(const StreamedTiles& t, int32_t step) const {
    if (step == 0) return {0, t.begin, place.head * group};
    return {step, t.begin + step % t.count(), place.head * group + step / t.count()};
  }

  TILEWISE_INLINE StreamedTiles tiles(int32_t block_rows) const {
    const auto seqlen_q = static_cast<int32_t>(sequence.seqlen_q), seqlen_k = static_cast<int32_t>(sequence.seqlen_k);
    const int32_t first = maximum(first_key, 0), last = minimum(first_key + block_rows, seqlen_k) - 1;
    if (first > last || seqlen_q == 0) return {0, 0, 0, 0};
    int32_t begin = 0, end = seqlen_q, all_begin = 0, all_end = seqlen_q;
    if constexpr (C.ranged) {
      begin = clamp_query(first - diagonal - band.high);
      end = clamp_query(last - diagonal - band.low + 1);
      all_begin = clamp_query(last - diagonal - band.high);
      all_end = clamp_query(first - diagonal - band.low + 1);
    }
    if (begin >= end) return {0, 0, 0, 0};
    return {begin / C.tile_cols, ceil_div(end, C.tile_cols), ceil_div(all_begin, C.tile_cols), all_end / C.tile_cols};
  }

  TILEWISE_INLINE int32_t clamp_query(int32_t i) const {
    return maximum(0, minimum(i, static_cast<int32_t>(sequence.seqlen_q)));
  }

  /// Where row `row` of the block stands in k (or v); rows past either end repeat the last one there.
  TILEWISE_INLINE const uint16_t* address_of_key(const Tensor4& t, int row) const {
    const RowSource source = key_source(t, sequence, place.batch, place.head, 0);
    const int64_t key = maximum(0, minimum(first_key + row, source.rows - 1));
    return source.data + key * source.stride;
  }

  TILEWISE_INLINE RowSource query_source(const Tensor4& t, int32_t head, int64_t cols) const {
    return {static_cast<const uint16_t*>(t.data) + row_offset(t, sequence, place.batch, 0, head), t.seq_stride,
            static_cast<int32_t>(sequence.seqlen_q), static_cast<int32_t>(cols)};
  }

  /// What the scores of a query depend on, from what those of its head's query 0 do.
  TILEWISE_INLINE RowScore query_score(const RowScore& of_head, int32_t query) const {
    RowScore row = of_head;
    row.query = query;
    row.diagonal = query + diagonal;
    if constexpr (C.bias_type != kBiasNone) {
      row.bias += minimum<int64_t>(query, sequence.seqlen_q - 1) * p.bias.query_stride;
    }
    return row;
  }

  TILEWISE_INLINE bool used(int row) const { return is_used(first_key + row); }
  TILEWISE_INLINE bool is_used(int32_t key) const { return key >= 0 && key < band.seqlen_k; }

  /// Whether a query sees a key. Rows of dk and dv that are no keys are not stored, whatever they sum up; queries past
  /// the end have no weight, but 0 times a NaN is one.
  TILEWISE_INLINE bool sees(int32_t query, int32_t key) const {
    if (C.wants_dq && !is_used(key)) return false;
    return !C.ranged || (query < sequence.seqlen_q && band.holds(key - (query + diagonal)));
  }

  /// Where row `row` of the block goes in dk (or dv), null past the sequence.
  TILEWISE_INLINE uint16_t* address_of_gradient(const Tensor4& to, int row) const {
    if (first_key + row + sequence.leftpad >= sequence.all_k) return nullptr;
    const int64_t at = place.batch * to.batch_stride + (sequence.k_row + first_key + row) * to.seq_stride +
                       place.head * to.head_stride;
    return static_cast<uint16_t*>(to.data) + at;
  }
};

}  // namespace tilewise::device
