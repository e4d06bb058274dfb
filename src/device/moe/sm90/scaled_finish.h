// Epilogues of an expert layer's products in fp8: gates and ups become quantised values with a scale for each 128 of a
// row, and sums of the second product weighted parts. Both go from registers to memory, 64 bytes of a row at a time.
#pragma once

#include "device/common/block_scale.h"
#include "device/moe/sm90/config.h"
#include "device/moe/sm90/params.h"
#include "device/sm90/epilogue.h"
#include "device/sm90/grouped_rows.h"
#include "device/tile/activate.h"
#include "device/tile/number.h"

namespace tilewise::device {

inline constexpr int kScaledColumns = 128;  // rows of weights of a block, which share a scale

struct MoeScaledTile {
  ExpertGroup group;
  int32_t row;  // of weights, the first
};

/// What sums of 128 elements are multiplied by, of gates and of ups.
template <class Sums>
struct ScaledFactors {
  typename Sums::PerRow of[2];
};

/// Is used by a warpgroup.
template <class Ops, MoeScaledConfig C>
class ScaledFinish {
  using Machine = typename Ops::Machine;
  static constexpr int kHalf = 64, kConsumers = 2, kConsumersMeet = 1;

 public:
  /// Gates and ups come in turns, eight of each.
  using Sums = Fragment<Ops, 16, kScaledColumns>;
  /// Where warpgroups that have halves of one block of values exchange what is greatest, in one of two places in turn:
  /// to meet for a tile means that all have read what was left for the tile before.
  struct Shared {
    struct alignas(16) Key {
      int32_t of;
    } greatest[2][kConsumers][kHalf];
  };

  TILEWISE_INLINE ScaledFinish(const MoeScaledParams& p, Shared& shared, int32_t warpgroup)
      : p_(p), shared_(shared), warpgroup_(warpgroup) {}

  /// Of 64 rows from the tile's row `first` on, by kCount blocks of weights from one on.
  template <int kCount>
  TILEWISE_INLINE void finish_tile(Sums (&sums)[2], const MoeScaledTile& tile, int32_t first, int32_t first_block) {
    const int32_t row = first + warp_row<Machine>() + Machine::lane() / 4;
    const Rows rows = rows_of(tile, row);
    if constexpr (C.down) {
      TILEWISE_UNROLL
      for (int i = 0; i < kCount; ++i) store_parts(sums[i], tile, rows, tile.row + (first_block + i) * kScaledColumns);
    } else {
      const int32_t value = tile.row / 2 + first_block * kHalf;
      int32_t greatest[2] = {};
      TILEWISE_UNROLL
      for (int i = 0; i < kCount; ++i) activate_sums(sums[i], tile, rows, value + i * kHalf, greatest);
      TILEWISE_UNROLL
      for (int32_t& key : greatest) key = greatest_of_quad(key);
      if constexpr (kCount == 1) exchange(greatest);
      TILEWISE_UNROLL
      for (int slot = 0; slot < 2; ++slot) {
        const float scale = real_scale(__builtin_bit_cast(float, greatest[slot]), false);
        if (rows.there[slot] && Machine::lane() % 4 == 0 && (kCount == 2 || warpgroup_ == 0))
          store_scale(rows, slot, tile, scale);
        TILEWISE_UNROLL
        for (int i = 0; i < kCount; ++i) store_values(sums[i], rows, slot, value + i * kHalf, scale);
      }
    }
  }

 private:
  /// The lane's two rows: where they are among all, whether they are the tile's, and what they weigh.
  struct Rows {
    int32_t index[2];
    bool there[2];
    float weight[2];
  };
  TILEWISE_INLINE Rows rows_of(const MoeScaledTile& tile, int32_t row) const {
    constexpr bool kWeighs = C.down != C.weight_on_input;
    Rows rows;
    TILEWISE_UNROLL
    for (int slot = 0; slot < 2; ++slot) {
      rows.index[slot] = tile.group.first + row + 8 * slot;
      rows.there[slot] = row + 8 * slot < tile.group.count;
      rows.weight[slot] = kWeighs && rows.there[slot] ? Machine::load_global(p_.row_weights + rows.index[slot]) : 1.0f;
    }
    return rows;
  }

  // ------------------------------------------------------------------ of the second product
  TILEWISE_INLINE void store_parts(Sums& sums, const MoeScaledTile& tile, const Rows& rows, int32_t col) const {
    TILEWISE_UNROLL
    for (int c = 0; c < Sums::kColTiles; ++c) {
      float bias[2] = {};
      if constexpr (C.biases) {
        for (int j = 0; j < 2; ++j)
          bias[j] = load_bias(tile, 0, col + 8 * c + 2 * (Machine::lane() % 4) + j, p_.shape.hidden);
      }
      TILEWISE_UNROLL
      for (int i = 0; i < 4; ++i) sums.tile[0][c][i] = (sums.tile[0][c][i] + bias[i % 2]) * rows.weight[i / 2];
    }
    store_rounded_rows<Machine, C.type>(sums, p_.shape.hidden - col, [&](int slot) TILEWISE_INLINE_LAMBDA {
      return rows.there[slot] ? static_cast<uint16_t*>(p_.out.data) + rows.index[slot] * p_.out.row_stride + col
                              : nullptr;
    });
  }

  // ------------------------------------------------------------------ of the first product
  /// Values take the place of their gates. Keys grow to that of the greatest finite magnitude of each row.
  TILEWISE_INLINE void activate_sums(Sums& sums, const MoeScaledTile& tile, const Rows& rows, int32_t value,
                                     int32_t (&greatest)[2]) const {
    TILEWISE_UNROLL
    for (int c = 0; c < Sums::kColTiles; c += 2) {
      float bias[2][2] = {};  // of gates and of ups
      if constexpr (C.biases) {
        for (int j = 0; j < 4; ++j) {
          const int32_t at = value + 4 * c + 2 * (Machine::lane() % 4) + j % 2;
          bias[j / 2][j % 2] = load_bias(tile, j / 2, at, p_.shape.intermediate);
        }
      }
      TILEWISE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float weight = rows.weight[i / 2];
        float& x = sums.tile[0][c][i];
        x = activate_gated<Machine, C.kind(), C.clamps()>(x * weight + bias[0][i % 2],
                                                          sums.tile[0][c + 1][i] * weight + bias[1][i % 2], p_.numbers);
        const int32_t key = __builtin_bit_cast(int32_t, x) & 0x7FFFFFFF;
        greatest[i / 2] = maximum(greatest[i / 2], key < 0x7F800000 ? key : 0);
      }
    }
  }
  TILEWISE_INLINE static int32_t greatest_of_quad(int32_t key) {
    key = maximum(key, shuffle_xor<Machine>(key, 1));
    return maximum(key, shuffle_xor<Machine>(key, 2));
  }
  /// With the other warpgroup, which has the other half of the values of the same rows.
  TILEWISE_INLINE void exchange(int32_t (&greatest)[2]) {
    auto& place = shared_.greatest[turn_];
    const int32_t row = warp_row<Machine>() + Machine::lane() / 4;
    if (Machine::lane() % 4 == 0) {
      TILEWISE_UNROLL
      for (int slot = 0; slot < 2; ++slot) {
        Machine::store_shared(&place[warpgroup_][row + 8 * slot].of, greatest[slot]);
      }
    }
    Machine::named_barrier_sync(kConsumersMeet, kConsumers * kWarpgroupThreads);
    TILEWISE_UNROLL
    for (int slot = 0; slot < 2; ++slot) {
      const int32_t* const other = &place[1 - warpgroup_][row + 8 * slot].of;
      greatest[slot] = maximum(greatest[slot], Machine::template load_shared<int32_t>(other));
    }
    turn_ ^= 1;
  }
  TILEWISE_INLINE void store_scale(const Rows& rows, int slot, const MoeScaledTile& tile, float scale) const {
    const int32_t block = tile.row / 2 / kScaledColumns;
    if (block < p_.value_scales.columns) {
      Machine::store_global(p_.value_scales.data + rows.index[slot] * p_.value_scales.row_stride + block, scale);
    }
  }
  /// A row's 64 values / scale as bytes: four lanes have two adjacent ones of eight each, and exchange them so that
  /// each stores 16.
  TILEWISE_INLINE void store_values(const Sums& sums, const Rows& rows, int slot, int32_t value, float scale) const {
    const float reciprocal = 1.0f / scale;
    uint32_t word[4];
    TILEWISE_UNROLL
    for (int i = 0; i < 4; ++i) {
      float x[4];
      TILEWISE_UNROLL
      for (int j = 0; j < 4; ++j) {
        x[j] = quotient(sums.tile[0][4 * i + j / 2 * 2][2 * slot + j % 2], scale, reciprocal);
      }
      word[i] = Machine::pack_e4m3(x[0], x[1], x[2], x[3]);
    }
    transpose_quad<Machine>(word);
    const int32_t at = value + 16 * (Machine::lane() % 4);
    if (!rows.there[slot] || at >= p_.shape.intermediate) return;
    const auto half = [&](int i, uint32_t selector)
                          TILEWISE_INLINE_LAMBDA { return Machine::permute_bytes(word[i], word[i + 1], selector); };
    auto* const row = static_cast<uint8_t*>(p_.out.data) + 2 * rows.index[slot] * p_.out.row_stride;
    Machine::store_global(reinterpret_cast<Chunk*>(row + at),
                          Chunk{{half(0, 0x5410u), half(2, 0x5410u), half(0, 0x7632u), half(2, 0x7632u)}});
  }

  TILEWISE_INLINE float load_bias(const MoeScaledTile& tile, int32_t gate, int32_t at, int32_t end) const {
    const ExpertBias& b = p_.bias;
    if (b.data == nullptr || at >= end) return 0.0f;
    const int64_t place = tile.group.expert * b.expert_stride + gate * b.gate_stride + at * b.stride;
    return load_number<Machine>(b.data, place, b.type);
  }

  const MoeScaledParams& p_;
  Shared& shared_;
  const int32_t warpgroup_;
  int32_t turn_ = 0;
};

}  // namespace tilewise::device
