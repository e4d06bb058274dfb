// What the kernel for few rows does with a tile's sums: intermediate values and parts, to the workspace.
#pragma once

#include "device/moe/sm90/config.h"
#include "device/moe/sm90/pairs.h"
#include "device/sm90/epilogue.h"

namespace tilewise::device {

/// A tile of weights and the rows that it is multiplied with.
struct MoeDecodeTile {
  ExpertGroup group;
  int32_t number;  // of the group
  int32_t index;   // of the expert's tiles
  int32_t down;    // 0: of gate and up
  int32_t last;    // of the rows that these weights are multiplied with
};

/// pair: lane l has those of columns l, l + 32, ... row: the tile's first one of this warpgroup's 64.
template <class Machine, MoeDecodeConfig C>
class MoeDecodeStore {
  using Tile = MoeDecodeTile;

 public:
  TILEWISE_INLINE explicit MoeDecodeStore(const MoeDecodeParams& p) : p_(p) {}

  template <class Sums, int kCount>
  TILEWISE_INLINE void store_part(Sums& sums, const Tile& tile, const int32_t (&pair)[kCount], int32_t row) const {
    const int32_t rows = p_.shape.hidden - row, own = warp_row<Machine>() + Machine::lane() / 4;
    if constexpr (C.biases) {
      for_rows(sums, [&](float& x, int slot, int, int) TILEWISE_INLINE_LAMBDA {
        if (own + 8 * slot < rows) x += bias(p_.down_bias, tile.group.expert, 0, row + own + 8 * slot);
      });
    }
    if constexpr (!C.weight_on_input) multiply_by_weights(sums, pair);
    auto* const parts = static_cast<uint16_t*>(p_.parts.data) + row;
    store_transposed<Machine, C.type>(sums, rows, [&](int32_t column) TILEWISE_INLINE_LAMBDA -> uint16_t* {
      const int32_t to = pair_of_column<Machine>(pair, column);
      return to == kNobody ? nullptr : parts + to * p_.parts.row_stride;
    });
  }

  template <class Sums, int kCount>
  TILEWISE_INLINE void store_h(Sums& sums, const Tile& tile, const int32_t (&pair)[kCount], int32_t row) const {
    if constexpr (C.weight_on_input) multiply_by_weights(sums, pair);
    const int32_t expert = tile.group.expert, lane = Machine::lane();
    auto* const h = static_cast<uint16_t*>(p_.h.data);
    if constexpr (!C.gated) {
      const int32_t first = tile.index * C.block_j() + row, rows = p_.shape.intermediate - first;
      for_rows(sums, [&](float& x, int slot, int, int) TILEWISE_INLINE_LAMBDA {
        const int32_t own = warp_row<Machine>() + lane / 4 + 8 * slot;
        if (C.biases && own < rows) x += bias(p_.gate_up_bias, expert, 0, first + own);
        x = activate_clamped<Machine, C.kind(), C.clamps()>(x, p_.numbers);
      });
      store_transposed<Machine, C.type>(sums, rows, [&](int32_t column) TILEWISE_INLINE_LAMBDA -> uint16_t* {
        const int32_t to = pair_of_column<Machine>(pair, column);
        return to == kNobody ? nullptr : h + to * p_.h.row_stride + first;
      });
    } else {
      // Rows 0 to 7 of each 16 are gate's and the others up's, of the same eight intermediate values.
      const int32_t first = tile.index * C.block_j() + (row + warp_row<Machine>()) / 2, own = first + lane / 4;
      float gate_bias = 0.0f, up_bias = 0.0f;
      if (C.biases && own < p_.shape.intermediate) {
        gate_bias = bias(p_.gate_up_bias, expert, 0, own), up_bias = bias(p_.gate_up_bias, expert, 1, own);
      }
      for_stored_columns<Sums::kCols>(pair, [&](int c, int32_t, int32_t to) TILEWISE_INLINE_LAMBDA {
        auto& x = sums.tile[0][c];
        const auto value = [&](int i) TILEWISE_INLINE_LAMBDA {
          return activate_gated<Machine, C.kind(), C.clamps()>(x[i] + gate_bias, x[2 + i] + up_bias, p_.numbers);
        };
        // Lanes of two adjacent values have two columns each, and exchange them for two values of one column.
        const uint32_t kept = Machine::template pack<C.type>(value(0), value(1));
        const uint32_t other = Machine::shuffle_xor(kept, 4);
        const uint32_t two = lane / 4 % 2 ? other >> 16 | (kept & 0xFFFF0000u) : (kept & 0xFFFFu) | other << 16;
        const int32_t at = first + lane / 8 * 2;
        if (to == kNobody || at >= p_.shape.intermediate) return;
        Machine::store_global(reinterpret_cast<uint32_t*>(h + to * p_.h.row_stride + at), two);
      });
    }
  }

 private:
  /// visit(eight columns, column, its pair or kNobody) for the columns of whose pairs of rows a lane stores.
  template <int kColumns, int kCount, class Visit>
  TILEWISE_INLINE static void for_stored_columns(const int32_t (&pair)[kCount], const Visit& visit) {
    const int lane = Machine::lane();
    TILEWISE_UNROLL
    for (int c = 0; c < kColumns / 8; ++c) {
      const int32_t column = 8 * c + 2 * (lane % 4) + lane / 4 % 2;
      visit(c, column, Machine::shuffle(pair[c / 4], column % 32));
    }
  }

  /// visit(x, slot, eight columns, which of the lane's two columns of them) for each of a lane's sums.
  template <class Sums, class Visit>
  TILEWISE_INLINE static void for_rows(Sums& sums, const Visit& visit) {
    TILEWISE_UNROLL
    for (int c = 0; c < Sums::kColTiles; ++c) {
      TILEWISE_UNROLL
      for (int i = 0; i < 4; ++i) visit(sums.tile[0][c][i], i / 2, c, i % 2);
    }
  }
  template <class Sums, int kCount>
  TILEWISE_INLINE void multiply_by_weights(Sums& sums, const int32_t (&pair)[kCount]) const {
    float weight[kCount];
    TILEWISE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      weight[i] = pair[i] == kNobody ? 0.0f : load_weight<Machine>(p_.shape, p_.topk_weights, pair[i]);
    }
    TILEWISE_UNROLL
    for (int c = 0; c < Sums::kColTiles; ++c) {
      TILEWISE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int32_t from = 8 * c % 32 + 2 * (Machine::lane() % 4) + i;
        const float factor =
            __builtin_bit_cast(float, Machine::shuffle(__builtin_bit_cast(int32_t, weight[c / 4]), from));
        sums.tile[0][c][i] *= factor, sums.tile[0][c][2 + i] *= factor;
      }
    }
  }
  TILEWISE_INLINE static float bias(const ExpertBias& from, int32_t expert, int32_t gate, int32_t i) {
    if (from.data == nullptr) return 0.0f;  // where the other product alone has one
    return load_number<Machine>(from.data, expert * from.expert_stride + gate * from.gate_stride + i * from.stride,
                                from.type);
  }

  const MoeDecodeParams& p_;
};

}  // namespace tilewise::device
