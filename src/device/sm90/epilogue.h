// Epilogues store a warp's accumulators to global memory: rounded, through shared memory and TMA, or straight from
// registers where rows end within a box. No warp waits for another.
#pragma once

#include "device/sm90/swizzled_tile.h"
#include "device/sm90/tensor_map.h"
#include "device/sm90/warpgroup.h"

namespace tilewise::device {

/// Holds a warp's 16 rows until they are stored, 64 columns of 16 bits at a time.
template <int kBuffers>
struct StoreStaging {
  using Tile = SwizzledTile<16, 64>;
  Tile buffer[kBuffers];
};

/// Is used by the lanes of one warp. The map's box is 16 rows of 64 columns.
template <class Machine, int kElement, int kBuffers>
class BoxStore {
 public:
  using Staging = StoreStaging<kBuffers>;
  using Tile = typename Staging::Tile;

  TILEWISE_INLINE explicit BoxStore(Staging& staging) : staging_(staging) {}

  /// Stores a warp's 16 rows of each fragment; fragments lie 64 rows apart. value_of(x) is what is stored of a sum.
  /// What lies outside the tensor is not stored.
  template <class Fragment, int kCount, class ValueOf, class... X>
  TILEWISE_INLINE void store(const Fragment (&sums)[kCount], const ValueOf& value_of, const TensorMap& map, int32_t col,
                             int32_t row, X... x) const {
    constexpr int kChunks = Fragment::kCols / Tile::kChunkColumns;
    static_assert(kChunks * Tile::kChunkColumns == Fragment::kCols && kCount * kChunks % kBuffers == 0);
    const int lane = Machine::lane(), place = Tile::place_of(lane % 16, lane / 16);
    TILEWISE_UNROLL
    for (int i = 0; i < kCount * kChunks; ++i) {
      const int chunk = i % kChunks;
      Tile& tile = staging_.buffer[i % kBuffers];
      if (lane == 0) Machine::template wait_stores_read<kBuffers - 1>();
      Machine::wave_sync();
      store_pairs<Machine, 8>(tile, place, [&](int c, int slot) TILEWISE_INLINE_LAMBDA {
        const auto& x = sums[i / kChunks].tile[0][8 * chunk + c];
        return Machine::template pack<kElement>(value_of(x[2 * slot]), value_of(x[2 * slot + 1]));
      });
      Machine::fence_shared_writes();
      Machine::wave_sync();
      if (lane == 0) {
        Machine::store_box(map, tile.bytes, col + chunk * Tile::kChunkColumns, row + i / kChunks * 64, x...);
        Machine::commit_stores();
      }
    }
  }

  /// Waits for all stores, before the kernel ends.
  TILEWISE_INLINE void finish() const {
    if (Machine::lane() == 0) Machine::wait_stores();
  }

 private:
  Staging& staging_;
};

/// Stores fp32 straight from registers, 8 bytes a lane. row_of(slot) is where a row of this lane goes; null is nowhere.
/// Columns from `cols` on, an even number, are left out.
template <class Machine, class Fragment, class RowOf>
TILEWISE_INLINE void store_float_rows(const Fragment& sums, int32_t cols, const RowOf& row_of) {
  TILEWISE_UNROLL
  for (int slot = 0; slot < Fragment::kSlots; ++slot) {
    float* const to = row_of(slot);
    if (!to) continue;
    TILEWISE_UNROLL
    for (int c = 0; c < Fragment::kColTiles; ++c) {
      const auto& x = sums.tile[0][c];
      const int32_t col = 8 * c + 2 * (Machine::lane() % 4);
      if (col >= cols) continue;
      Machine::store_global(reinterpret_cast<FloatRun<2>*>(to + col), FloatRun<2>{{x[2 * slot], x[2 * slot + 1]}});
    }
  }
}

/// Does the same rounded to 16 bits: a lane stores 16 bytes, four lanes store 64 bytes of a row. `cols` is a multiple
/// of
/// 8. All lanes take part.
template <class Machine, int kElement, class Fragment, class RowOf>
TILEWISE_INLINE void store_rounded_rows(const Fragment& sums, int32_t cols, const RowOf& row_of) {
  static_assert(Fragment::kColTiles % 4 == 0);
  TILEWISE_UNROLL
  for (int slot = 0; slot < Fragment::kSlots; ++slot) {
    uint16_t* const to = row_of(slot);
    TILEWISE_UNROLL
    for (int c = 0; c < Fragment::kColTiles; c += 4) {
      uint32_t word[4];
      TILEWISE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const auto& x = sums.tile[0][c + i];
        word[i] = Machine::template pack<kElement>(x[2 * slot], x[2 * slot + 1]);
      }
      transpose_quad<Machine>(word);
      const int32_t col = (c + Machine::lane() % 4) * 8;
      if (!to || col >= cols) continue;
      Machine::store_global(reinterpret_cast<Chunk*>(to + col), Chunk{{word[0], word[1], word[2], word[3]}});
    }
  }
}

/// Stores a product whose sides are swapped, so that its columns are out's rows. They are rounded to 16 bits: a lane
/// stores 4 bytes, a warp 16 adjacent elements. to_of(column) is where the tile's first row goes; null is nowhere. Rows
/// from `rows` on, an even number, are left out. All lanes take part.
template <class Machine, int kElement, class Fragment, class ToOf>
TILEWISE_INLINE void store_transposed(const Fragment& sums, int32_t rows, const ToOf& to_of) {
  const int lane = Machine::lane();
  const bool odd = lane / 4 % 2 != 0;
  TILEWISE_UNROLL
  for (int c = 0; c < Fragment::kColTiles; ++c) {
    uint16_t* const to = to_of(8 * c + 2 * (lane % 4) + (odd ? 1 : 0));
    TILEWISE_UNROLL
    for (int slot = 0; slot < Fragment::kSlots; ++slot) {
      // Lanes of two adjacent rows have two columns each, and exchange them for two rows of one column.
      const auto& x = sums.tile[0][c];
      const uint32_t own = Machine::template pack<kElement>(x[2 * slot], x[2 * slot + 1]);
      const uint32_t other = Machine::shuffle_xor(own, 4);
      const uint32_t pair = odd ? other >> 16 | (own & 0xFFFF0000u) : (own & 0xFFFFu) | other << 16;
      const int32_t row = warp_row<Machine>() + lane / 8 * 2 + 8 * slot;
      if (to && row < rows) Machine::store_global(reinterpret_cast<uint32_t*>(to + row), pair);
    }
  }
}

}  // namespace tilewise::device
