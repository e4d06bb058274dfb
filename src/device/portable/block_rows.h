// Which rows a block works on: (query, head) pairs of one sequence, where they lie in memory, and
// which keys they see.
#pragma once

#include "device/common/kernel_config.h"
#include "device/common/mask.h"
#include "device/portable/loader.h"

namespace tilewise::device {

/// A block's place in the grid: row tiles run fastest, so that neighbours share keys in the cache,
/// and the last tile first, since under a causal mask it has the most keys.
struct GridPlace {
  int32_t tile, split, head, batch;
};

/// Blocks of a batch entry in an order that follows the machine's caches. GPUs of several dies, each with
/// a cache of its own, deal blocks out to them in turn: each die takes a run of neighbours instead, so
/// that the keys of a head pass through one cache and not through all.
template <class Machine>
TILEWISE_INLINE int block_in_order(const GridParams& grid) {
  const int block = Machine::block();
  if constexpr (requires { Machine::kDies; }) {
    const int entry = grid.num_tiles * grid.num_splits * grid.heads, of_die = entry / Machine::kDies;
    const int i = block % entry;
    if (i < of_die * Machine::kDies) return block - i + i % Machine::kDies * of_die + i / Machine::kDies;
  }
  return block;
}

template <class Machine>
TILEWISE_INLINE GridPlace grid_place(const GridParams& grid) {
  const int block = uniform<Machine>(block_in_order<Machine>(grid));
  const int of_head = block / grid.num_tiles, of_batch = of_head / grid.num_splits;
  return {uniform<Machine>(grid.num_tiles - 1 - block % grid.num_tiles), uniform<Machine>(of_head % grid.num_splits),
          uniform<Machine>(of_batch % grid.heads), uniform<Machine>(of_batch / grid.heads)};
}

/// The sequence a block works on. Without lengths everything is known to be the same in all lanes,
/// which spares the loops a dozen registers.
template <KernelConfig C>
TILEWISE_INLINE Sequence sequence_at(const AttentionParams& p, int64_t batch) {
  if constexpr (C.lengths) return sequence_of(p, batch);
  return {0, 0, p.seqlen_q, p.seqlen_k, p.seqlen_q, p.seqlen_k, 0};
}

/// Rows of a block. Without packed heads row r is query r of `first_head`; with them it is query
/// r / group of head first_head + r % group.
template <KernelConfig C>
struct BlockRows {
  int32_t batch, first_head, group;
  int32_t first_row;   // of the block
  int32_t used_rows;   // rows of used queries
  int32_t total_rows;  // rows of all queries in memory

  TILEWISE_INLINE BlockRows(const AttentionParams& p, const Sequence& s, const GridPlace& place, int32_t block_rows)
      : batch(place.batch), group(static_cast<int32_t>(p.num_heads_q / p.num_heads_k)) {
    const int32_t a_query = C.packed_heads ? group : 1;
    first_head = C.packed_heads ? place.head * group : place.head;
    first_row = place.tile * block_rows;
    used_rows = static_cast<int32_t>(s.seqlen_q) * a_query;
    total_rows = static_cast<int32_t>(s.all_q) * a_query;
  }

  TILEWISE_INLINE int32_t query(int32_t row) const { return C.packed_heads ? row / group : row; }
  TILEWISE_INLINE int32_t head(int32_t row) const { return C.packed_heads ? first_head + row % group : first_head; }
  TILEWISE_INLINE int32_t head_k() const { return first_head / group; }
};

/// First element of the tensor's row of query i, in a sequence whose queries start at s.q_row.
TILEWISE_INLINE int64_t row_offset(const Tensor4& t, const Sequence& s, int64_t batch, int64_t i, int64_t head) {
  return batch * t.batch_stride + (s.q_row + i) * t.seq_stride + head * t.head_stride;
}

TILEWISE_INLINE RowSource key_source(const Tensor4& t, const Sequence& s, int64_t batch, int64_t head, int64_t cols) {
  const int64_t offset = batch * t.batch_stride + s.k_row * t.seq_stride + head * t.head_stride;
  return {static_cast<const uint16_t*>(t.data) + offset, t.seq_stride, static_cast<int32_t>(s.seqlen_k),
          static_cast<int32_t>(cols)};
}

/// Where the lse of used query i stands. Packed lse counts rows over all sequences.
TILEWISE_INLINE int64_t lse_offset(const LseTensor& t, const Sequence& s, int64_t batch, int64_t i, int64_t head) {
  return batch * t.batch_stride + head * t.head_stride + (s.q_row + i) * t.seq_stride;
}

/// Of the backward pass: whether query i is used and sees a key, or the sink.
template <class Machine>
TILEWISE_INLINE bool sees_something(const AttentionParams& p, const Sequence& s, int64_t batch, int64_t head,
                                    int64_t i) {
  if (i >= s.seqlen_q) return false;
  return Machine::load_global(p.softmax_lse.data + lse_offset(p.softmax_lse, s, batch, i, head)) != -kInfinity;
}

/// Where row `row` of the block stands in q (or dout); rows past the end repeat the last one.
template <KernelConfig C>
TILEWISE_INLINE const uint16_t* address_of_row(const Tensor4& t, const BlockRows<C>& rows, const Sequence& s, int row) {
  const int32_t r = minimum(rows.first_row + row, rows.used_rows - 1);
  return static_cast<const uint16_t*>(t.data) + row_offset(t, s, rows.batch, rows.query(r), rows.head(r));
}

/// Where row `row` of the block goes in out (or dq), null past the sequence.
template <KernelConfig C>
TILEWISE_INLINE uint16_t* address_of_result(const Tensor4& t, const BlockRows<C>& rows, const Sequence& s, int row) {
  const int32_t r = rows.first_row + row;
  if (r >= rows.total_rows) return nullptr;
  return static_cast<uint16_t*>(t.data) + row_offset(t, s, rows.batch, rows.query(r), rows.head(r));
}

/// Tiles [begin, end) of the streamed side, of which [full_begin, full_end) are visible whole: every row of the
/// block sees, or is seen by, every column.
struct StreamedTiles {
  int32_t begin, end, full_begin, full_end;
  TILEWISE_INLINE int32_t count() const { return end - begin; }
  TILEWISE_INLINE bool is_full(int32_t tile) const { return tile >= full_begin && tile < full_end; }
};

/// Of the keys that queries [first, last] see; both are used.
template <KernelConfig C>
TILEWISE_INLINE StreamedTiles key_tiles(const AttentionParams& p, const Sequence& s, int32_t first, int32_t last) {
  const auto tiles = [](int64_t begin, int64_t end, int64_t full_begin, int64_t full_end) {
    const auto down = [](int64_t key) { return static_cast<int32_t>(key) / C.tile_cols; };
    const auto up = [](int64_t key) { return ceil_div(static_cast<int32_t>(key), C.tile_cols); };
    return StreamedTiles{down(begin), begin < end ? up(end) : down(begin), up(full_begin), down(full_end)};
  };
  if constexpr (!C.ranged) return tiles(0, s.seqlen_k, 0, s.seqlen_k);
  const int64_t d = diagonal_offset(p, s);
  const KeyRange of_first = visible_keys(p, s, d, first), of_last = visible_keys(p, s, d, last);
  return tiles(of_first.begin, of_last.end, of_last.begin, of_first.end);
}

}  // namespace tilewise::device
