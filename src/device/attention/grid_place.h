// What a block works on: its place in the grid, its sequence, and the tiles that stream past.
#pragma once

#include "device/attention/params.h"
#include "device/common/mask.h"
#include "device/tile/platform.h"

namespace tilewise::device {

/// A block's place in the grid: row tiles run fastest, so that neighbours share keys in the cache,
/// and the last tile first, since under a causal mask it has the most keys.
struct GridPlace {
  int32_t tile, split, head, batch;
};

/// Blocks of a batch entry in an order that follows the machine's caches. GPUs of several dies, each with
/// a cache of its own, hand blocks out to them in turn: each die takes a run of neighbours instead, so
/// that the keys of a head pass through one cache and not through all.
template <class Machine>
TILEWISE_INLINE int block_in_order(const TileGrid& grid) {
  const int block = Machine::block();
  if constexpr (requires { Machine::kDies; }) {
    const int entry = grid.num_tiles * grid.num_splits * grid.num_heads, of_die = entry / Machine::kDies;
    const int i = block % entry;
    if (i < of_die * Machine::kDies) return block - i + i % Machine::kDies * of_die + i / Machine::kDies;
  }
  return block;
}

template <class Machine>
TILEWISE_INLINE GridPlace grid_place(const TileGrid& grid) {
  const int block = uniform<Machine>(block_in_order<Machine>(grid));
  const int of_head = divide(block, grid.by_tiles), of_batch = divide(of_head, grid.by_splits);
  const int batch = divide(of_batch, grid.by_heads);
  return {uniform<Machine>(grid.num_tiles - 1 - (block - of_head * grid.num_tiles)),
          uniform<Machine>(of_head - of_batch * grid.num_splits), uniform<Machine>(of_batch - batch * grid.num_heads),
          uniform<Machine>(batch)};
}

/// A block's part of the keys that its queries see.
struct KeyPart {
  int32_t number, count;
  int32_t place;  // of its sums among those of all sequences, where sequences differ in their number of parts
};

/// The sequence a block works on. Without lengths everything is known to be the same in all lanes,
/// which spares the loops a dozen registers.
template <auto C>
TILEWISE_INLINE Sequence sequence_at(const AttentionShape& shape, int64_t batch) {
  if constexpr (C.lengths) return sequence_of(shape, batch);
  return {0, 0, shape.seqlen_q, shape.seqlen_k, shape.seqlen_q, shape.seqlen_k, 0};
}

/// Tiles [begin, end) of the streamed side, of which [full_begin, full_end) are visible whole: every row of the
/// block sees, or is seen by, every column.
struct TileRange {
  int32_t begin, end, full_begin, full_end;
  int32_t step = 1;  // from one of a block's tiles to the next
  TILEWISE_INLINE int32_t count() const { return end - begin; }
  TILEWISE_INLINE bool is_full(int32_t tile) const { return tile >= full_begin && tile < full_end; }
};

}  // namespace tilewise::device
