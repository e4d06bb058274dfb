// Where blocks work on several tiles of keys: rounds dq's sums that are complete, by blocks that have no tile of keys
// left, so that no launch does.
#pragma once

#include "device/hopper/bwd_dq_rows.h"
#include "device/hopper/bwd_work.h"

namespace tilewise::device {

/// A warp takes one tile of queries after the other, of a head, by a counter of their own, in the order in which sums
/// are complete. It waits for blocks that have begun, which never wait for it. Beside products, in a warp of a block
/// that works on tiles of keys, loads and stores wait in the queue in front of shared memory and make others wait: a
/// step of 2 KB took 1,850 cycles, and a window of 1,024 12% longer.
template <class Machine, auto C>
class BwdRounder {
 public:
  TILEWISE_INLINE explicit BwdRounder(const BwdParamsOf<C>& params) : p_(params) {}

  TILEWISE_INLINE void run() const {
    wait_for_preprocess<Machine, C>();  // which clears the counter
    int32_t number = static_cast<int32_t>(agreed<Machine>(draw()));
    const int32_t count = numbers();
    TILEWISE_NO_UNROLL
    while (number < count) {
      const uint32_t next = draw();
      round(place(number));
      number = static_cast<int32_t>(agreed<Machine>(next));
    }
  }

 private:
  using Rows = BwdDqRows<Machine, C>;
  static constexpr int32_t kPieces = C.block_m / Rows::kRows;

  TILEWISE_INLINE uint32_t draw() const { return Machine::lane() == 0 ? Machine::count_later(p_.tile_counter + 1) : 0; }

  TILEWISE_INLINE int32_t tiles() const { return ceil_div(static_cast<int32_t>(p_.shape.seqlen_q), C.block_m); }
  // Query heads, and those of a set of key heads.
  TILEWISE_INLINE int32_t heads() const { return heads_of(p_.order.num_heads * p_.order.batch_size); }
  TILEWISE_INLINE int32_t heads_at_once() const { return heads_of(p_.order.heads_at_once); }
  TILEWISE_INLINE int32_t heads_of(int32_t key_heads) const {
    return C.grouped ? key_heads * p_.shares * p_.group : key_heads;
  }
  /// Tiles of all sets of heads but the last one, whose tiles come in pieces of the rows that a warp rounds at once, so
  /// that all warps end together: as whole tiles, few heads of 1k take 8 us longer.
  TILEWISE_INLINE int32_t whole_tiles() const { return (heads() - 1) / heads_at_once() * heads_at_once() * tiles(); }
  TILEWISE_INLINE int32_t numbers() const {
    const int32_t whole = whole_tiles();
    return whole + (heads() * tiles() - whole) * kPieces;
  }

  /// Rows of a head, counted from its first one.
  struct Place {
    int32_t head, tile, first_row, rows;
  };
  TILEWISE_INLINE Place place(int32_t number) const {
    const int32_t of_head = tiles(), whole = whole_tiles(), piece = number - whole;
    const int32_t tile = piece < 0 ? number : whole + piece / kPieces;
    const int32_t first_head = tile / (heads_at_once() * of_head) * heads_at_once();
    const int32_t in_set = tile - first_head * of_head, of_set = minimum(heads_at_once(), heads() - first_head);
    const int32_t row = in_set / of_set;
    // The last keys come first: of a window those of the last queries.
    const int32_t query_tile = C.windowed ? of_head - 1 - row : row;
    return {first_head + in_set - row * of_set, query_tile,
            query_tile * C.block_m + (piece < 0 ? 0 : piece % kPieces * Rows::kRows),
            piece < 0 ? C.block_m : Rows::kRows};
  }

  /// Once all sums have arrived.
  TILEWISE_INLINE void round(const Place& place) const {
    const int32_t head = place.head, of_batch = heads_of(p_.order.num_heads), batch = head / of_batch;
    await_sums(p_.turns + head * p_.turns_a_head, batch, place.tile);
    Machine::wave_sync();
    const Rows of_head(p_, sequence_at<C>(p_.shape, batch), batch, head - batch * of_batch, p_.score.softmax_scale);
    const int32_t end = minimum(place.first_row + place.rows, static_cast<int32_t>(p_.shape.seqlen_q));
    TILEWISE_NO_UNROLL
    for (int32_t row = place.first_row; row < end; row += Rows::kRows) of_head.round(row, end);
  }

  /// In an order the last ones are those of the first keys that a query of the tile sees. Else each warp that adds has
  /// counted its tiles of keys, all of which the head's queries see.
  TILEWISE_INLINE void await_sums(const uint32_t* words, int32_t batch, int32_t tile) const {
    if constexpr (!C.ordered) {
      if (Machine::lane() == 0)
        Machine::await_global(words, static_cast<uint32_t>((C.grouped ? p_.tiles : p_.order.num_tiles) * C.dq_warps()));
    } else if (Machine::lane() < C.turns_a_tile()) {
      const Sequence s = sequence_at<C>(p_.shape, batch);
      const int64_t first_key =
          C.windowed ? tile * C.block_m + diagonal_offset(p_.score, s) + key_band(p_.score).low : 0;
      Machine::await_global(words + tile * C.turns_a_tile() + Machine::lane(),
                            static_cast<uint32_t>(maximum<int64_t>(first_key, 0) / C.block_n() + 1));
    }
  }

  const BwdParamsOf<C>& p_;
};

}  // namespace tilewise::device
