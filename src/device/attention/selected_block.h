// The keys that a block of the backward pass has where keys are selected: a run of one query's indices. Tiles that
// stream past are heads of the group at that query.
#pragma once

#include "device/attention/block_keys.h"
#include "device/attention/selected_keys.h"

namespace tilewise::device {

/// As BlockKeys. Which key each row of the block is lies in shared memory.
template <auto C, class Params, class Machine>
struct SelectedBlockKeys {
  static constexpr bool kInARow = false;
  const Params& p;
  Sequence sequence;
  GridPlace place;
  VisibleBand band;
  int32_t query, group, first_head;
  const int32_t* keys;

  /// For all waves: the last barrier is behind them.
  TILEWISE_INLINE SelectedBlockKeys(const Params& params, const Sequence& s, const GridPlace& at,
                                    int32_t (&shared)[C.block_n()])
      : p(params),
        sequence(s),
        place(at),
        band(visible_band(params.score, s)),
        group(params.grid.group),
        first_head(at.head * params.grid.group),
        keys(shared) {
    const int32_t runs = ceil_div(static_cast<int32_t>(p.key_indices.count), C.block_n());
    query = uniform<Machine>(place.tile / runs);
    if (!is_used()) return;
    KeySelection<Machine> selection;
    selection.open(p, sequence, place.batch, place.head, query);
    const int thread = Machine::thread(), first = (place.tile - query * runs) * C.block_n();
    static_assert(C.waves * Machine::kLanes >= C.block_n(), "a thread finds one key");
    if (thread < C.block_n()) Machine::store_shared(&shared[thread], selection.key(first + thread));
    Machine::barrier();
  }

  /// Nothing streams past a block all of whose indices are hidden.
  TILEWISE_INLINE TileRange tiles(int32_t) const {
    if (!is_used()) return {0, 0, 0, 0};
    bool any = false;
    TILEWISE_UNROLL
    for (int row = 0; row < C.block_n(); row += Machine::kLanes) {
      any |= used(minimum(row + Machine::lane(), C.block_n() - 1));
    }
    const int32_t count = Machine::any(any) ? ceil_div(group, C.block_m) : 0;
    return {0, count, 0, count};
  }
  TILEWISE_INLINE int32_t steps(const TileRange& t) const { return t.count(); }
  TILEWISE_INLINE QueryPosition position(const TileRange&, int32_t step) const { return {step, step, first_head}; }

  TILEWISE_INLINE int32_t key_of(int row) const { return Machine::template load_shared<int32_t>(keys + row); }
  TILEWISE_INLINE bool used(int row) const { return key_of(row) < band.seqlen_k; }
  /// Past the last head: a query that is none, so that its P is 0.
  TILEWISE_INLINE int32_t query_of(const QueryPosition& at, int col) const {
    return at.tile * C.block_m + col < group ? query : static_cast<int32_t>(sequence.seqlen_q);
  }
  TILEWISE_INLINE int32_t head_of(const QueryPosition& at, int col) const {
    return first_head + minimum(at.tile * C.block_m + col, group - 1);
  }
  /// A row's key is visible, or none: then its sums go nowhere. Columns past the last head repeat it, and where a
  /// function hides that, they must be hidden, too: 0 times a NaN is one.
  TILEWISE_INLINE bool sees(int32_t of_column, int32_t) const { return of_column < sequence.seqlen_q; }

  template <int kElement>
  TILEWISE_INLINE RowSource<kElement> columns_of(const Tensor4& t, const QueryPosition&, int64_t cols) const {
    return {elements_of<kElement>(t) + query_offset(t, sequence, place.batch, query, first_head), t.head_stride, group,
            static_cast<int32_t>(cols)};
  }
  /// Of no head, since columns differ in theirs.
  struct NoScores {};
  TILEWISE_INLINE static NoScores scores_of_head(const QueryPosition&) { return {}; }
  TILEWISE_INLINE RowOf<C> scores_of(const NoScores&, const QueryPosition& at, int col) const {
    return row_score<C>(p.score, p.shape.num_heads_q, sequence, place.batch, head_of(at, col), query);
  }

  /// Where a row's key stands in k (or v); rows that are none repeat the last key.
  template <int kElement>
  TILEWISE_INLINE const ElementBits<kElement>* address_to_read(const Tensor4& t, int row) const {
    const RowSource<kElement> source = key_source<kElement>(t, sequence, place.batch, place.head, 0);
    const int64_t key = minimum(key_of(row), source.rows - 1);
    return source.data + key * source.stride;
  }

  /// Of a row's key among those of all sequences, as sums are kept.
  TILEWISE_INLINE int64_t sums_row(int row) const {
    return (place.batch * p.accum_rows_a_batch + sequence.k_row + key_of(row)) * p.grid.num_heads + place.head;
  }

 private:
  TILEWISE_INLINE bool is_used() const { return query < sequence.seqlen_q && band.seqlen_k > 0; }
};

}  // namespace tilewise::device
