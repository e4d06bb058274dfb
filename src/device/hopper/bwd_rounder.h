// Where dq's sums have an order and blocks work on several tiles of keys: a warp beside the couriers rounds sums that
// are complete into dq, so that no launch reads them all once more.
#pragma once

#include "device/hopper/bwd_deal.h"
#include "device/hopper/warpgroup.h"

namespace tilewise::device {

/// Beside a tile of keys it rounds as many queries of a head of the set before, whose blocks have begun before this
/// one: to wait for their sums is safe, and hardly ever needed. The last set's heads are left to bwd_convert_dq.
template <class Machine, HopperBwdConfig C>
class BwdRounder {
 public:
  TILEWISE_INLINE BwdRounder(const HopperBwdParams& params, const BwdWork& work) : p_(params), work_(work) {}

  TILEWISE_INLINE void run() const {
    const TileOrder& order = p_.order;
    const int32_t head = work_.batch * order.num_heads + work_.head, at_once = order.heads_at_once;
    const int32_t first = divide(head, p_.divisors.by_set) * at_once;  // of this set
    if (first == 0) return;
    const int32_t heads = minimum(at_once, order.num_heads * order.batch_size - first);
    TILEWISE_NO_UNROLL
    for (int32_t before = head - at_once; before < first; before += heads) round_head(before);
  }

 private:
  static constexpr int32_t kRows = 16, kColTiles = 4;  // of a step: rows of a warp that adds, columns in eights
  static constexpr int32_t kSteps = C.head_dim / (8 * kColTiles);

  /// The share of it that falls to this tile of keys.
  TILEWISE_INLINE void round_head(int32_t head) const {
    constexpr int32_t kTiles = C.block_n() / C.block_m;
    const int32_t batch = divide(head, p_.divisors.by_heads), tiles = ceil_div(work_.seqlen_q, C.block_m);
    const Tensor4& t = p_.dq;
    uint16_t* const to = static_cast<uint16_t*>(t.data) + batch * t.batch_stride +
                         static_cast<int64_t>(head - batch * p_.order.num_heads) * t.head_stride;
    TILEWISE_NO_UNROLL
    for (int32_t share = work_.tile * kTiles; share < tiles; share += p_.order.num_tiles * kTiles) {
      TILEWISE_NO_UNROLL
      for (int32_t tile = share; tile < minimum(share + kTiles, tiles); ++tile) round_tile(head, tile, to);
    }
  }

  /// Once its last sums, those of the first keys that it sees, have arrived.
  TILEWISE_INLINE void round_tile(int32_t head, int32_t tile, uint16_t* dq) const {
    const int32_t first_row = tile * C.block_m;
    const int32_t first_key = C.windowed ? maximum(first_row + work_.diagonal + work_.band.low, 0) : 0;
    if (Machine::lane() == 0) {
      Machine::await_global(p_.turns + head * p_.turns_a_head + tile,
                            static_cast<uint32_t>(first_key / C.block_n() + 1));
    }
    Machine::wave_sync();
    // A step's sums lie behind those of the one before: 16 rows, as many columns in eights as four lanes share.
    const float* from =
        p_.dq_accum + head * p_.dq_accum_a_head + static_cast<int64_t>(first_row) * C.head_dim + 4 * Machine::lane();
    const int32_t steps = ceil_div(minimum(work_.seqlen_q - first_row, C.block_m), kRows) * kSteps;
    TILEWISE_NO_UNROLL
    for (int32_t step = 0; step < steps; ++step, from += kColTiles * 128) {
      round_step(from, dq, first_row + step / kSteps * kRows, step % kSteps * kColTiles);
    }
  }

  /// Of rows from `row` on and columns from 8 * col_tile on. A lane holds of 8 columns two side by side, in rows lane /
  /// 4 and 8 behind it, and leaves 16 bytes of each of these, where there is such a row.
  TILEWISE_INLINE void round_step(const float* from, uint16_t* dq, int32_t row, int32_t col_tile) const {
    FloatRun<4> sums[kColTiles];
    TILEWISE_UNROLL
    for (int c = 0; c < kColTiles; ++c) {
      sums[c] = Machine::load_global(reinterpret_cast<const FloatRun<4>*>(from + c * 128));
    }
    const float scale = p_.score.softmax_scale;
    row += Machine::lane() / 4;
    const int32_t col = (col_tile + Machine::lane() % 4) * 8;
    TILEWISE_UNROLL
    for (int slot = 0; slot < 2; ++slot) {
      uint32_t word[kColTiles];
      TILEWISE_UNROLL
      for (int c = 0; c < kColTiles; ++c) {
        word[c] =
            Machine::template pack<C.q_type>(sums[c].value[2 * slot] * scale, sums[c].value[2 * slot + 1] * scale);
      }
      transpose_quad<Machine>(word);
      if (row + 8 * slot < work_.seqlen_q && (C.exact_dims || col < p_.shape.head_dim)) {
        uint16_t* const to = dq + (row + 8 * slot) * p_.dq.seq_stride + col;
        Machine::store_global(reinterpret_cast<Chunk*>(to), Chunk{{word[0], word[1], word[2], word[3]}});
      }
    }
  }

  const HopperBwdParams& p_;
  const BwdWork& work_;
};

}  // namespace tilewise::device
