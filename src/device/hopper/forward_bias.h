// A bias that the copy engine has brought: from a tile of shared memory to the scores of a warp.
#pragma once

#include "device/common/float16.h"
#include "device/hopper/forward_shared.h"
#include "device/hopper/params.h"
#include "device/hopper/warpgroup.h"

namespace tilewise::device {

/// Loads of each score's own bias would cost 0.6 of the kernel's speed: here four matrices of 8 x 8 come to a warp by
/// one instruction, as its accumulators lie.
template <class Machine, HopperForwardConfig C>
class BoxedBias {
  static constexpr bool kOfHalves = C.bias_type == kBiasBf16 || C.bias_type == kBiasF16;

 public:
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

  /// S = S * scale + bias; -infinity where a boolean bias is false.
  template <class Scores, class Tile>
  TILEWISE_INLINE void add(Scores& S, float scale, Tile& tile) const {
    if constexpr (kOfHalves) {
      TILEWISE_UNROLL
      for (int k = 0; k < Scores::kColTiles / 2; ++k) {
        uint32_t words[4];
        Machine::load_matrices(words, tile.piece(row_[0], 2 * k + Machine::lane() / 16));
        TILEWISE_UNROLL
        for (int i = 0; i < 4; ++i) {
          auto& x = S.tile[0][2 * k + i / 2];
          float &low = x[2 * (i % 2)], &high = x[2 * (i % 2) + 1];
          low = low * scale + widened(words[i] & 0xFFFFu);
          high = high * scale + widened(words[i] >> 16);
        }
      }
    } else {
      TILEWISE_UNROLL
      for (int c = 0; c < Scores::kColTiles; ++c) {
        TILEWISE_UNROLL
        for (int slot = 0; slot < 2; ++slot) add_pair(S.tile[0][c], slot, scale, tile, 8 * c);
      }
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

  /// Two neighbouring scores of one row.
  template <class Accumulator, class Tile>
  TILEWISE_INLINE void add_pair(Accumulator& x, int slot, float scale, Tile& tile, int first_col) const {
    const int32_t byte = (first_col + 2 * (Machine::lane() % 4)) * bias_bytes(C);
    const uint8_t* const from = tile.piece(row_[slot], byte / 16) + byte % 16;
    float &low = x[2 * slot], &high = x[2 * slot + 1];
    low *= scale, high *= scale;
    if constexpr (C.bias_type == kBiasBool) {
      const auto seen = Machine::template load_shared<uint16_t>(from);
      low = seen & 0xFFu ? low : -kInfinity;
      high = seen >> 8 ? high : -kInfinity;
    } else {
      const auto bias = Machine::template load_shared<FloatRun<2>>(from);
      low += bias.value[0], high += bias.value[1];
    }
  }

  int32_t row_[2];
};

}  // namespace tilewise::device
