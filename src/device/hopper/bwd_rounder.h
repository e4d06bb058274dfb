// Where blocks work on several tiles of keys: rounds dq's sums that are complete, by blocks that have no tile of keys
// left, so that no launch does.
#pragma once

#include "device/hopper/bwd_work.h"

namespace tilewise::device {

/// A warp takes one tile of queries after the other, of a head, by a counter of their own, in the order in which sums
/// are complete. It waits for blocks that have begun, which never wait for it. Beside products, in a warp of a block
/// that works on tiles of keys, loads and stores wait in the queue in front of shared memory and make others wait: a
/// step of 2 KB took 1,850 cycles, and a window of 1,024 12% longer.
template <class Machine, HopperBwdConfig C>
class BwdRounder {
 public:
  TILEWISE_INLINE explicit BwdRounder(const HopperBwdParams& params) : p_(params) {}

  TILEWISE_INLINE void run() const {
    wait_for_step_before<Machine>();  // which clears the counter
    const TileOrder& order = p_.order;
    const int32_t tiles = ceil_div(static_cast<int32_t>(p_.shape.seqlen_q), C.block_m),
                  heads = order.num_heads * order.batch_size, count = tiles * heads;
    int32_t number = agreed(draw());
    TILEWISE_NO_UNROLL
    while (number < count) {
      const uint32_t next = draw();
      const int32_t set = number / (order.heads_at_once * tiles), first_head = set * order.heads_at_once;
      const int32_t in_set = number - first_head * tiles, of_set = minimum(order.heads_at_once, heads - first_head);
      const int32_t row = in_set / of_set;
      // The last keys come first: of a window those of the last queries.
      round_tile(first_head + in_set - row * of_set, C.windowed ? tiles - 1 - row : row);
      number = agreed(next);
    }
  }

 private:
  static constexpr int32_t kRows = 16;     // whose sums lie together: see dq_accum.h
  static constexpr int32_t kColTiles = 4;  // columns in eights of a step of the warp: a lane has 8 columns of two rows
  static constexpr int32_t kSteps = C.head_dim / (8 * kColTiles);
  static constexpr int32_t kApart = 8;  // rows between a lane's two

  TILEWISE_INLINE uint32_t draw() const { return Machine::lane() == 0 ? Machine::count_later(p_.tile_counter + 1) : 0; }
  TILEWISE_INLINE static int32_t agreed(uint32_t drawn) { return Machine::agreed(static_cast<int32_t>(drawn)); }

  /// Once all sums have arrived.
  TILEWISE_INLINE void round_tile(int32_t head, int32_t tile) const {
    const int32_t first_row = tile * C.block_m, batch = head / p_.order.num_heads;
    await_sums(p_.turns + head * p_.turns_a_head, batch, tile);
    Machine::wave_sync();
    const Tensor4& t = p_.dq;
    uint16_t* const to =
        static_cast<uint16_t*>(t.data) + batch * t.batch_stride + (head - batch * p_.order.num_heads) * t.head_stride;
    const int32_t end = minimum(first_row + C.block_m, static_cast<int32_t>(p_.shape.seqlen_q));
    TILEWISE_NO_UNROLL
    for (int32_t row = first_row; row < end; row += kRows) round_rows(head, row, end, to);
  }

  /// In an order the last ones are those of the first keys that a query of the tile sees. Else each warp that adds has
  /// counted its tiles of keys, all of which the head's queries see.
  TILEWISE_INLINE void await_sums(const uint32_t* words, int32_t batch, int32_t tile) const {
    if constexpr (!C.ordered) {
      if (Machine::lane() == 0) Machine::await_global(words, static_cast<uint32_t>(p_.order.num_tiles * C.kDqWarps));
    } else if (Machine::lane() < C.turns_a_tile()) {
      const Sequence s = sequence_at<C>(p_.shape, batch);
      const int64_t first_key =
          C.windowed ? tile * C.block_m + diagonal_offset(p_.score, s) + key_band(p_.score).low : 0;
      Machine::await_global(words + tile * C.turns_a_tile() + Machine::lane(),
                            static_cast<uint32_t>(maximum<int64_t>(first_key, 0) / C.block_n() + 1));
    }
  }

  TILEWISE_INLINE void round_rows(int32_t head, int32_t first_row, int32_t end, uint16_t* dq) const {
    // Of 8 columns 64 bytes are a row's and those of the 8th row behind it.
    const float* const from =
        p_.dq_accum + head * p_.dq_accum_a_head + static_cast<int64_t>(first_row) * C.head_dim + Machine::lane() * 16;
    const int32_t row = first_row + Machine::lane() % kApart, col = Machine::lane() / kApart * 8;
    FloatRun<4> sums[kSteps][4];
    TILEWISE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      TILEWISE_UNROLL
      for (int i = 0; i < 4; ++i) {
        sums[step][i] =
            Machine::load_global(reinterpret_cast<const FloatRun<4>*>(from + step * kColTiles * 128 + 4 * i));
      }
    }
    const float* const lse2 = p_.lse2 + head * p_.rows_a_head;
    TILEWISE_UNROLL
    for (int slot = 0; slot < 2; ++slot) {
      const int32_t at = row + slot * kApart;
      if (at >= end) continue;
      // Hidden keys of NaN, times 0, don't reach a row that sees nothing.
      const bool sees = Machine::load_global(lse2 + statistic_place(at)) != kInfinity;
      TILEWISE_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        const int32_t first_col = step * kColTiles * 8 + col;
        if (!C.exact_dims && first_col >= p_.shape.head_dim) continue;
        Chunk* const to = reinterpret_cast<Chunk*>(dq + at * p_.dq.seq_stride + first_col);
        Machine::store_global(to, sees ? rounded(sums[step], slot) : Chunk{{0, 0, 0, 0}});
      }
    }
  }
  /// 8 columns of the first or the second row.
  TILEWISE_INLINE Chunk rounded(const FloatRun<4> (&sums)[4], int slot) const {
    const float scale = p_.score.softmax_scale;
    Chunk chunk;
    TILEWISE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float* const two = sums[i].value + 2 * slot;
      chunk.word[i] = Machine::template pack<C.q_type>(two[0] * scale, two[1] * scale);
    }
    return chunk;
  }

  const HopperBwdParams& p_;
};

}  // namespace tilewise::device
