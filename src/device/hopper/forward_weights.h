// From scores to weights, in the registers of a warp: S is adjusted, becomes P, and moves its rows' reference when it
// must. P is a matrix operand as soon as it is rounded.
#pragma once

#include "device/hopper/forward_draws.h"
#include "device/hopper/forward_rows.h"
#include "device/hopper/softmax.h"
#include "device/sm90/matrix_descriptor.h"

namespace tilewise::device {

template <class Ops, auto C>
class ForwardWeights {
  using Machine = typename Ops::Machine;
  using Rows = ScoreRows<Machine, C>;

 public:
  using Params = ForwardParamsOf<C>;
  using Scores = Fragment<Ops, 16, C.block_n>;  // a warp's part of its warpgroup's 64 rows
  using Out = Fragment<Ops, 16, C.head_dim_v>;
  using Softmax = SteadySoftmax<Scores, C.v_type, C.watch_weights != 0>;
  using PerRow = typename Softmax::PerRow;
  using NoRest = typename Softmax::NoRest;

  Scores S;
  WgmmaRegisters P[C.block_n / C.depth()];
  Softmax softmax;

  TILEWISE_INLINE explicit ForwardWeights(const Params& p)
      : scale_(Rows::kOneScale ? rows_.natural_scale(p.score) * kLog2E : 1.0f) {}

  TILEWISE_INLINE void clear() {
    for (WgmmaRegisters& part : P) part = WgmmaRegisters{};
  }

  /// S of the first tile of keys becomes P. `once_free` runs when P's registers and O are no more the matrix unit's.
  template <class BiasTile, class OnceFree>
  TILEWISE_INLINE void start(const Params& p, const SharedWork<Machine>& work, int32_t warpgroup, int32_t tile,
                             bool masked, BiasTile& bias, Out& O, const OnceFree& once_free) {
    rows_.begin(p, work, warpgroup);
    fetch_bias(bias);
    draw(p, tile);
    if constexpr (!Rows::kOneScale) scale_ = rows_.natural_scale(p.score) * kLog2E;
    if (masked) {
      rows_.template adjust<true>(S, p, tile * C.block_n);
    } else {
      rows_.template adjust<false>(S, p, tile * C.block_n);
    }
    bool all_near = true;
    if constexpr (C.bounded) {
      softmax.start_bounded(scale_);
    } else {
      all_near = softmax.start(S, scale_);
    }
    if constexpr (C.lengths) {
      const QueryRows<Machine, C> rows(p, work, warpgroup);
      TILEWISE_UNROLL
      for (int slot = 0; slot < Scores::kSlots; ++slot) {
        if (!rows.is_among(rows.row_of_slot(slot), work.seqlen_q)) softmax.ignore(slot);
      }
    }
    if constexpr (C.watch_sums) careful_ = false;
    NoRest rest;
    if (!all_near) {
      const bool far = softmax.find_far(scale_);
      if constexpr (C.watch_sums) careful_ = softmax.has_unseen() || far;
      softmax.subtract_far(S, scale_, rest, far);
    }
    weigh(p, rest, O, once_free);
  }

  /// What draws of dropout for a tile of keys have in common. Asked for before the tile's products, between which the
  /// assembler puts the draws: behind them these took 11% longer at 128 columns.
  template <class Columns>
  TILEWISE_INLINE void fetch_draws(const Columns& columns) {
    draws_.fetch(columns);
  }
  /// Dropout's draws for the tile of keys whose scores are under way, or the first ones.
  TILEWISE_INLINE void draw(const Params& p, int32_t tile) {
    if constexpr (C.shares_draws()) {
      rows_.template draw_fetched<0, kEarlyDraws>(draws_, p.score);
    } else if constexpr (C.dropout) {
      rows_.draw(draws_, p.score, tile * C.block_n);
    }
  }

  /// The bias of the tile of keys whose scores are under way, where it comes in boxes.
  template <class BiasTile>
  TILEWISE_INLINE void fetch_bias(BiasTile& bias) {
    if constexpr (C.bias_boxes) rows_.fetch_bias(bias);
  }

  /// S of a later tile becomes P. Where sums or weights are watched, scores are compared only in masked tiles, in which
  /// rows see their first key, and after a sum has grown, since more of that kind are to be expected.
  template <bool kMasked, class OnceFree>
  TILEWISE_INLINE void become(const Params& p, int32_t tile, Out& O, const OnceFree& once_free) {
    if constexpr (Rows::kSlopesProducts && !kMasked) {
      PerRow rest;
      rows_.adjust_but(rest, S, p, tile * C.block_n);
      adjusted_become<kMasked>(p, rest, O, once_free);
    } else {
      rows_.template adjust<kMasked>(S, p, tile * C.block_n);
      NoRest rest;
      adjusted_become<kMasked>(p, rest, O, once_free);
    }
  }

  /// Where sums or weights are watched: lowers the weights of rows that have grown far. Q, K and the bias are what the
  /// scores of this tile of keys came from.
  template <class RowTile, class KeyTile, class BiasTile>
  TILEWISE_INLINE void watch(const Params& p, int32_t tile, Out& O, RowTile& Q, KeyTile& K, BiasTile& bias) {
    if constexpr (C.watch_weights) {
      watch_weights(O, Q, K);
    } else {
      watch_sums(p, tile, O, Q, K, bias);
    }
  }

 private:
  /// A sum that has grown far lowers its row's weights by a power of 2.
  template <class RowTile, class KeyTile, class BiasTile>
  TILEWISE_INLINE void watch_sums(const Params& p, int32_t tile, Out& O, RowTile& Q, KeyTile& K, BiasTile& bias) {
    if (!softmax.has_grown()) return;
    careful_ = true;
    const PerRow lost = softmax.lost_rows(sum_before_);
    if (Machine::any(lost[0] + lost[1] > 0.0f)) {
      multiply_again(Q, K);
      fetch_bias(bias);
      rows_.template adjust<false>(S, p, tile * C.block_n);
      weigh_again(O, lost);
    }
    PerRow factor;
    softmax.lower(scale_, factor);
    O.scale_rows(factor);
    TILEWISE_UNROLL
    for (WgmmaRegisters& part : P) {
      TILEWISE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float low = bf16_to_float(static_cast<uint16_t>(part.word[i])), high = bf16_to_float(part.word[i] >> 16);
        part.word[i] = Machine::template pack<C.v_type>(low * factor[i % 2], high * factor[i % 2]);
      }
    }
  }

  /// Looks at rounded bytes, 18 instructions for 96 keys, where comparing scores takes 26 and every exponential waits
  /// for the answer. What has passed e4m3 is right in S still.
  template <class RowTile, class KeyTile>
  TILEWISE_INLINE void watch_weights(Out& O, RowTile& Q, KeyTile& K) {
    if (!has_great_weight()) return;
    PerRow lost, factor;
    const uint32_t moved = softmax.refer_to_weights(S, scale_, factor, lost);
    Softmax::scale_moved(O, moved, factor);
    Softmax::scale_moved(S, moved, factor);
    round<0, kElements>(moved);
    if (Machine::any(lost[0] + lost[1] > 0.0f)) weigh_lost(O, lost, Q, K);
  }
  /// In any of the warp's lanes.
  TILEWISE_INLINE bool has_great_weight() const {
    constexpr uint32_t kEachByte = 0x01010101u;
    uint32_t great = 0;
    TILEWISE_UNROLL
    for (const WgmmaRegisters& part : P) {
      TILEWISE_UNROLL
      for (int i = 0; i < 4; ++i) great |= part.word[i] + softmax.great_byte(i % 2) * kEachByte;
    }
    return Machine::any((great & 0x80u * kEachByte) != 0);
  }

  static constexpr int kElements = Softmax::kElements;
  /// Draws, by 32 keys, that are made beside a tile's products; where head dims are small the others are made beside
  /// its exponentials. Products share their time with draws, exponentials hide some.
  static constexpr int kDraws = C.block_n / 32, kEarlyDraws = C.has_narrow_heads() ? kDraws / 2 : kDraws;
  /// With ALiBi, 80 columns of scores and 128 of O leave no registers for weights in two parts (72 bytes of spills).
  static constexpr bool kSlopesWide = Rows::kSlopesProducts && C.block_n > 64 && C.head_dim_v > 64;
  /// Whether all weights are there before the products with V are waited for, and that is enforced: where tanh takes as
  /// long as the exponentials, and consumers work ping-pong.
  static constexpr bool kWeighsFirst = C.bounded && C.ping_pong;
  /// Weighed while the products with V run.
  static constexpr int kHalf = kWeighsFirst || kSlopesWide ? kElements : kElements / 2 / 8 * 8;

  /// Sums that go on from one tile to the next make steps up to 4% shorter, but not with dropout.
  using TileSums = typename Softmax::template TileSums<!C.dropout>;

  /// `rest`: what S still lacks, by rows.
  template <bool kMasked, class Rest, class OnceFree>
  TILEWISE_INLINE void adjusted_become(const Params& p, Rest& rest, Out& O, const OnceFree& once_free) {
    PerRow factor;
    const bool compares = !C.bounded && (kMasked || !C.watches() || (C.watch_sums && careful_));
    const uint32_t moved = compares ? softmax.move(S, scale_, factor, rest) : 0;
    if constexpr (C.watch_sums && !kMasked) sum_before_ = softmax.row_sum;
    if constexpr (C.watch_weights && !kMasked) softmax.look_at_sums();
    weigh(p, rest, O, once_free);
    if (moved != 0) {
      Softmax::scale_moved(O, moved, factor);
      if constexpr (C.watch_sums) careful_ = careful_ || softmax.has_far(scale_);
    }
  }

  template <class Rest, class OnceFree>
  TILEWISE_INLINE void weigh(const Params& p, const Rest& rest, Out& O, const OnceFree& once_free) {
    if constexpr (C.shares_draws()) rows_.template draw_fetched<kEarlyDraws, kDraws>(draws_, p.score);
    TileSums sums;
    softmax.template weigh<0, kHalf>(S, scale_, sums, rest);
    if constexpr (kHalf == kElements) softmax.add(sums);
    // Not after the tile's sums, of which the assembler finds out that they are never negative.
    if constexpr (kWeighsFirst) Machine::order_after(softmax.row_sum[0] + softmax.row_sum[1]);
    Machine::template wgmma_wait<0>();
    pin_registers<Machine>(O);
    once_free();
    round<0, kHalf>();
    softmax.template weigh<kHalf, kElements>(S, scale_, sums, rest);
    if constexpr (kHalf < kElements) softmax.add(sums);
    round<kHalf, kElements>();
  }

  /// Two weights as the matrix unit takes them, without those that dropout takes away.
  TILEWISE_INLINE uint32_t rounded(int element) const {
    const Sm80Accumulator& tile = S.tile[0][element / 4];
    const uint32_t word = Machine::template pack<C.v_type>(tile[element % 4], tile[element % 4 + 1]);
    if constexpr (C.dropout) {
      return word & draws_.of(element);
    } else {
      return word;
    }
  }
  /// Two columns of one tile of 8 and two of the next, as fp8's transposed V has its keys.
  TILEWISE_INLINE uint32_t rounded_bytes(const Sm80Accumulator& x, const Sm80Accumulator& y, int col_tile,
                                         int slot) const {
    const int i = 2 * slot;
    const uint32_t word = Machine::pack_e4m3(x[i], x[i + 1], y[i], y[i + 1]);
    if constexpr (C.dropout) {
      constexpr uint32_t kFirstOfHalves = 0x6420u;
      const int first = 4 * col_tile + i;
      return word & Machine::permute_bytes(draws_.of(first), draws_.of(first + 4), kFirstOfHalves);
    } else {
      return word;
    }
  }
  /// visit(word of P, slot of its row, what it is to be): of bytes of tile c of 8 columns, and of the next one.
  template <class Visit>
  TILEWISE_INLINE void for_each_rounded(int c, const Sm80Accumulator& x, const Sm80Accumulator& y, const Visit& visit) {
    TILEWISE_UNROLL
    for (int slot = 0; slot < Scores::kSlots; ++slot) {
      visit(P[c / 4].word[slot + c % 4], slot, rounded_bytes(x, y, c, slot));
    }
  }
  /// Of rows whose slot is among `slots`, in fp8.
  template <int kFrom, int kTo>
  TILEWISE_INLINE void round(uint32_t slots = 3) {
    if constexpr (C.fp8()) {
      TILEWISE_UNROLL
      for (int c = kFrom / 4; c < kTo / 4; c += 2) {
        for_each_rounded(c, S.tile[0][c], S.tile[0][c + 1], [&](uint32_t& word, int slot, uint32_t rounded) {
          if ((slots >> slot & 1) != 0) word = rounded;
        });
      }
    } else {
      TILEWISE_UNROLL
      for (int e = kFrom; e < kTo; e += 2) P[e / 8].word[e / 2 % 4] = rounded(e);
    }
  }

  /// A weight has passed what fp32 holds: from the lost rows' scores once more, weights by a reference that fits them.
  TILEWISE_INLINE void weigh_again(Out& O, const PerRow& lost) {
    S.for_each(0, [&](int slot, int, auto&& x) { x = lost[slot] != 0.0f ? x : -kInfinity; });
    TILEWISE_UNROLL
    for (int slot = 0; slot < 2; ++slot) {
      softmax.row_sum[slot] = lost[slot] != 0.0f ? sum_before_[slot] : softmax.row_sum[slot];
    }
    PerRow factor;
    NoRest rest;
    Softmax::scale_moved(O, softmax.move(S, scale_, factor, rest), factor);
    TileSums sums;
    softmax.template weigh<0, kElements>(S, scale_, sums);
    softmax.add(sums);
    TILEWISE_UNROLL
    for (int e = 0; e < kElements; e += 2) {
      uint32_t& word = P[e / 8].word[e / 2 % 4];
      word = lost[e / 2 % 2] != 0.0f ? rounded(e) : word;
    }
  }

  /// S = Q K^T of this warp's rows, by mma.sync: the other warps have no part in it.
  template <class RowTile, class KeyTile>
  TILEWISE_INLINE void multiply_again(RowTile& Q, KeyTile& K) {
    const int lane = Machine::lane();
    S.clear();
    TILEWISE_NO_UNROLL
    for (int k = 0; k < C.head_dim / 16; ++k) {
      uint32_t rows[4];
      Machine::load_matrices(rows, Q.piece(warp_row<Machine>() + lane % 16, 2 * k + lane / 16));
      TILEWISE_UNROLL
      for (int c = 0; c < Scores::kColTiles; c += 2) {
        uint32_t keys[4];
        Machine::load_matrices(keys, K.piece(8 * c + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
        Machine::template mma<C.q_type>(S.tile[0][c], rows, keys[0], keys[1]);
        Machine::template mma<C.q_type>(S.tile[0][c + 1], rows, keys[2], keys[3]);
      }
    }
  }

  /// Some rows' greatest weight has passed what fp32 holds: weights from their scores once more.
  template <class RowTile, class KeyTile>
  TILEWISE_INLINE void weigh_lost(Out& O, const PerRow& lost, RowTile& Q, KeyTile& K) {
    static_assert(C.plain_scale);
    multiply_bytes_again(Q, K);
    PerRow factor;
    softmax.refer_to_lost(S, scale_, lost, factor);
    O.scale_rows(factor);
    TILEWISE_UNROLL
    for (int c = 0; c < Scores::kColTiles; c += 2) {
      Sm80Accumulator weights[2] = {S.tile[0][c], S.tile[0][c + 1]};
      softmax.weigh_lost(weights, scale_, lost);
      for_each_rounded(c, weights[0], weights[1],
                       [&](uint32_t& word, int slot, uint32_t rounded) { word = lost[slot] != 0.0f ? rounded : word; });
    }
  }
  /// multiply_again() of bytes, one 16 keys after the other, since registers are few.
  template <class RowTile, class KeyTile>
  TILEWISE_INLINE void multiply_bytes_again(RowTile& Q, KeyTile& K) {
    constexpr int kPieces = C.head_dim / 16, kChunkPieces = kChunkRowBytes / 16;
    S.clear();
    TILEWISE_UNROLL
    for (int c = 0; c < Scores::kColTiles; c += 2) {
      TILEWISE_NO_UNROLL
      for (int piece = 0; piece < kPieces; ++piece) {
        const int lane = Machine::lane(), row = lane % 16;
        uint8_t* const chunk = lane < 16 ? Q.chunk(piece / kChunkPieces) + warp_row<Machine>() * kChunkRowBytes
                                         : K.chunk(piece / kChunkPieces) + 8 * c * kChunkRowBytes;
        uint32_t bytes[4];  // of rows 0 to 7 and 8 to 15, of keys likewise
        Machine::load_matrices(bytes, chunk + KeyTile::place_of(row, piece % kChunkPieces));
        multiply_bytes(S.tile[0][c], S.tile[0][c + 1], bytes);
      }
    }
  }
  /// As f16, which e4m3 is exactly, in an order that rows and keys share.
  TILEWISE_INLINE static void multiply_bytes(Sm80Accumulator& first, Sm80Accumulator& second,
                                             const uint32_t (&bytes)[4]) {
    uint32_t pairs[4][2];
    TILEWISE_UNROLL
    for (int i = 0; i < 4; ++i) Machine::template unpack_e4m3<kF16>(pairs[i], bytes[i]);
    const uint32_t rows[4] = {pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1]};
    Machine::template mma<kF16>(first, rows, pairs[2][0], pairs[2][1]);
    Machine::template mma<kF16>(second, rows, pairs[3][0], pairs[3][1]);
  }

  Rows rows_;
  float scale_;  // from scores to units of log2
  PerRow sum_before_;
  bool careful_;
  Choose<C.dropout, KeptPairs<Scores, (C.normal_bound != 0)>, NoShared> draws_;
};

}  // namespace tilewise::device
