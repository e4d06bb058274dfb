// A bias that TMA has loaded: from a tile of shared memory to the scores of a warp.
#pragma once

#include "device/common/float16.h"
#include "device/hopper/forward_shared.h"
#include "device/hopper/params.h"
#include "device/sm90/warpgroup.h"

namespace tilewise::device {

/// Loads of each score's own bias would cost 0.6 of the kernel's speed: here four matrices of 8 x 8 come to a warp by
/// one instruction, as its accumulators lie. Elements of up to two bytes are read while scores are multiplied, behind
/// whose operands such loads wait in front of shared memory; for floats there are no registers then.
template <class Machine, auto C>
class BoxedBias {
  static constexpr bool kOfHalves = C.bias_type == kBiasBf16 || C.bias_type == kBiasF16;
  using Pair = Choose<C.bias_type == kBiasBool, uint16_t, FloatRun<2>>;

 public:
  static constexpr bool kFetchesEarly = bias_bytes(C) <= 2;

  /// rows: the warpgroup's QueryRows.
  template <class Rows>
  TILEWISE_INLINE void begin(const BiasPlaces& places, const Rows& rows) {
    const int lane = Machine::lane();
    if constexpr (kOfHalves) {
      row_[0] = place_of(places, rows, warp_row<Machine>() + lane % 16);
    } else {
      for (int slot = 0; slot < 2; ++slot) row_[slot] = place_of(places, rows, Rows::row_of_slot(slot));
    }
  }

  /// Reads a tile.
  template <class Tile>
  TILEWISE_INLINE void fetch(Tile& tile) {
    if constexpr (kOfHalves) {
      TILEWISE_UNROLL
      for (int k = 0; k < C.block_n / 16; ++k) {
        Machine::load_matrices(words_[k], tile.piece(row_[0], 2 * k + Machine::lane() / 16));
      }
    } else {
      TILEWISE_UNROLL
      for (int c = 0; c < C.block_n / 8; ++c) {
        TILEWISE_UNROLL
        for (int slot = 0; slot < 2; ++slot) pairs_[c][slot] = pair_of(tile, slot, 8 * c);
      }
    }
  }

  /// S = S * scale + bias, of the tile that has been read; -infinity where a boolean bias is false, which alone leaves
  /// a positive scale to the exponent.
  template <class Scores>
  TILEWISE_INLINE void add(Scores& S, float scale) const {
    TILEWISE_UNROLL
    for (int c = 0; c < Scores::kColTiles; ++c) {
      TILEWISE_UNROLL
      for (int slot = 0; slot < 2; ++slot) add_pair(S.tile[0][c], c, slot, scale);
    }
  }

  /// S without what a boolean bias hides.
  template <class Scores>
  TILEWISE_INLINE void hide(Scores& S) const {
    static_assert(C.bias_type == kBiasBool);
    TILEWISE_UNROLL
    for (int c = 0; c < Scores::kColTiles; ++c) {
      TILEWISE_UNROLL
      for (int slot = 0; slot < 2; ++slot) hide_pair(S.tile[0][c], pairs_[c][slot], slot);
    }
  }

 private:
  /// Of the box's rows, the one that a row of the warpgroup takes. Rows behind the last one have some row's.
  template <class Rows>
  TILEWISE_INLINE static int32_t place_of(const BiasPlaces& places, const Rows& rows, int32_t row) {
    if constexpr (!C.pack_gqa) return places.query * row;
    const int32_t used = minimum(row, rows.queries * rows.group - 1);
    const int32_t query = used / rows.group, head = used % rows.group;
    return places.query * query * (places.head ? rows.group : 1) + places.head * head;
  }

  TILEWISE_INLINE static float widened(uint32_t bits) {
    const auto half = static_cast<uint16_t>(bits);
    return C.bias_type == kBiasBf16 ? bf16_to_float(half) : Machine::widen_f16(half);
  }

  template <class Tile>
  TILEWISE_INLINE Pair pair_of(Tile& tile, int slot, int first_col) const {
    const int32_t byte = (first_col + 2 * (Machine::lane() % 4)) * bias_bytes(C);
    return Machine::template load_shared<Pair>(tile.piece(row_[slot], byte / 16) + byte % 16);
  }

  template <class Accumulator>
  TILEWISE_INLINE static void hide_pair(Accumulator& x, Pair seen, int slot) {
    x[2 * slot] = seen & 0xFFu ? x[2 * slot] : -kInfinity;
    x[2 * slot + 1] = seen >> 8 ? x[2 * slot + 1] : -kInfinity;
  }

  /// Two neighbouring scores of one row.
  template <class Accumulator>
  TILEWISE_INLINE void add_pair(Accumulator& x, int col_tile, int slot, float scale) const {
    float &low = x[2 * slot], &high = x[2 * slot + 1];
    if constexpr (kOfHalves) {
      const uint32_t word = words_[col_tile / 2][col_tile % 2 * 2 + slot];
      low = fused_multiply_add(low, scale, widened(word & 0xFFFFu));
      high = fused_multiply_add(high, scale, widened(word >> 16));
    } else if constexpr (C.bias_type == kBiasBool) {
      if constexpr (!C.scales_late) low = rounded_product(low, scale), high = rounded_product(high, scale);
      hide_pair(x, pairs_[col_tile][slot], slot);
    } else {
      const Pair& bias = pairs_[col_tile][slot];
      low = fused_multiply_add(low, scale, bias.value[0]);
      high = fused_multiply_add(high, scale, bias.value[1]);
    }
  }

  int32_t row_[2];
  uint32_t words_[C.block_n / 16][4];
  Pair pairs_[C.block_n / 8][2];
};

}  // namespace tilewise::device
