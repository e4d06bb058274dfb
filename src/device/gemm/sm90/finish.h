// The epilogue of Hopper's products: bias and activation in registers, and where a tile's rows go.
#pragma once

#include "device/gemm/sm90/tiles.h"
#include "device/sm90/epilogue.h"
#include "device/tile/activate.h"
#include "device/tile/number.h"

namespace tilewise::device {

template <class Machine>
TILEWISE_INLINE float load_bias(const GemmParams& p, int32_t expert, int32_t col) {
  if (col >= p.n) return 0.0f;
  return load_number<Machine>(p.bias.data, expert * p.bias.expert_stride + col * p.bias.stride, p.bias.type);
}

TILEWISE_INLINE uint16_t* out_row(const GemmParams& p, int32_t row) {
  return static_cast<uint16_t*>(p.out) + row * p.out_stride;
}

/// Rows of no expert become 0, by all consumers.
template <class Machine, GemmConfig C>
TILEWISE_INLINE void clear_rows_of_nobody(const GemmParams& p) {
  constexpr int32_t kThreads = C.kConsumers * kWarpgroupThreads;
  const int32_t first = Machine::load_global(p.offsets), last = Machine::load_global(p.offsets + p.num_experts);
  const int32_t pieces = p.n / 8;
  const int64_t all = int64_t{first + p.m - last} * pieces, step = int64_t{Machine::blocks()} * kThreads;
  for (int64_t i = int64_t{Machine::block()} * kThreads + Machine::thread() - kWarpgroupThreads; i < all; i += step) {
    const auto row = static_cast<int32_t>(i / pieces);
    Machine::store_global(reinterpret_cast<Chunk*>(out_row(p, row < first ? row : row - first + last)) + i % pieces,
                          Chunk{});
  }
}

/// Is used by the lanes of one warp. first_row: of the tile's rows, the warp's first one.
template <class Machine, GemmConfig C>
class GemmEpilogue {
 public:
  using Store = BoxStore<Machine, C.out_type, C.store_buffers>;

  TILEWISE_INLINE GemmEpilogue(const GemmParams& p, typename Store::Staging& staging, int32_t first_row)
      : p_(p), store_(staging), first_row_(first_row) {}

  /// Fragments lie 64 rows apart.
  template <class Sums, int kCount>
  TILEWISE_INLINE void finish_tile(Sums (&sums)[kCount], const GemmTile& tile) const {
    if constexpr (C.biases || C.kind() != ActivationKind::identity) activate_sums(sums, tile);
    const int32_t row = tile.row + first_row_;
    if constexpr (C.grouped) {
      if (row + 64 * (kCount - 1) + 16 > tile.end) return store_rows_before_end(sums, tile, row);
    }
    store_.store(sums, [](float x) TILEWISE_INLINE_LAMBDA { return x; }, p_.out_map, tile.col, row);
  }

  /// After the last tile.
  TILEWISE_INLINE void finish() const {
    if constexpr (C.grouped) clear_rows_of_nobody<Machine, C>(p_);
    store_.finish();
  }

 private:
  template <class Sums, int kCount>
  TILEWISE_INLINE void activate_sums(Sums (&sums)[kCount], const GemmTile& tile) const {
    TILEWISE_UNROLL
    for (int c = 0; c < Sums::kColTiles; ++c) {
      float bias[2] = {};
      if constexpr (C.biases) {
        TILEWISE_UNROLL
        for (int j = 0; j < 2; ++j)
          bias[j] = load_bias<Machine>(p_, tile.expert, tile.col + 8 * c + 2 * (Machine::lane() % 4) + j);
      }
      TILEWISE_UNROLL
      for (Sums& part : sums) {
        TILEWISE_UNROLL
        for (int i = 0; i < 4; ++i) {
          float& x = part.tile[0][c][i];
          x = activate<Machine, C.kind()>(x + bias[i % 2], 0.0f);
        }
      }
    }
  }

  /// Rows from the end on are another expert's.
  template <class Sums, int kCount>
  TILEWISE_INLINE void store_rows_before_end(Sums (&sums)[kCount], const GemmTile& tile, int32_t first) const {
    TILEWISE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      store_rounded_rows<Machine, C.out_type>(sums[i], p_.n - tile.col, [&](int slot) TILEWISE_INLINE_LAMBDA {
        const int32_t row = first + 64 * i + Machine::lane() / 4 + 8 * slot;
        return row < tile.end ? row_of(row) + tile.col : nullptr;
      });
    }
  }

  TILEWISE_INLINE uint16_t* row_of(int32_t row) const { return out_row(p_, row); }

  const GemmParams& p_;
  const Store store_;
  const int32_t first_row_;
};

}  // namespace tilewise::device
