// Tile operations on WMMA 16x16x16 in waves of 32 (AMD RDNA3): scores come transposed, keys as the
// instruction's rows, so that a lane holds one query and every second key of it.
#pragma once

#include "device/portable/fragment.h"
#include "device/portable/machine_rdna_types.h"
#include "device/portable/stream_tile.h"

namespace tilewise::device {

template <class Machine_>
struct RdnaOps {
  using Machine = Machine_;
  using Layout = RdnaLayout;
  static constexpr bool kAsyncCopies = false;
  static constexpr bool kTransposedCopies = true;
  static constexpr bool kDirectRows = true;  // gather_rows() brings a block's own rows
  static constexpr int kChunkMates = 1;      // how many blocks of 4 keys apart are those of a transposed chunk
  static constexpr int kRoomyDims = 192;     // head_dim + head_dim_v beyond which registers are few
  static constexpr int kMostHeldBytes = 32;  // of a tile on its way, a lane, where registers are few

  TILEWISE_INLINE static void finish_copies() {}

  template <int Rows, int Cols>
  using Accumulators = Fragment<Layout, RdnaAccumulator, Rows, Cols>;

  /// An operand in registers: row lane % 16, all 16 elements of a step, in both halves of the lanes.
  template <int Rows, int Depth>
  struct RowOperand {
    RdnaOperand step[Rows / 16][Depth / 16];
  };

  /// Fills an operand from global memory: load(row, chunk) brings 8 elements of a row of the wave.
  template <int Rows, int Depth, class Load>
  TILEWISE_INLINE static void gather_rows(RowOperand<Rows, Depth>& to, const Load& load) {
    const int lane = Machine::lane();
    TILEWISE_UNROLL
    for (int r = 0; r < Rows / 16; ++r) {
      TILEWISE_UNROLL
      for (int k = 0; k < Depth / 16; ++k) {
        to.step[r][k] = join(load(16 * r + lane % 16, 2 * k), load(16 * r + lane % 16, 2 * k + 1));
      }
    }
  }

  /// scores += rows * tile^T, the rows held in registers.
  template <int kElement, int Rows, int Cols, int Depth, class Tile>
  TILEWISE_INLINE static void multiply(Accumulators<Rows, Cols>& scores, const RowOperand<Rows, Depth>& rows,
                                       const Tile& tile) {
    const int lane = product_lane<(Tile::kCols > 128)>();
    TILEWISE_UNROLL
    for (int k = 0; k < Depth / 16; ++k) {
      keep_order<Machine>();
      TILEWISE_UNROLL
      for (int c = 0; c < Cols / 16; ++c) {
        const RdnaOperand keys = load_operand(tile, lane, 16 * c, k);
        TILEWISE_UNROLL
        for (int r = 0; r < Rows / 16; ++r) {
          Machine::template mma_16x16x16<kElement>(scores.tile[r][c], keys, rows.step[r][k]);
        }
      }
    }
  }

  /// scores += rows * tile^T, the rows read from shared memory as they are needed. kTight: registers are scarce.
  template <int kElement, bool kTight = false, int Rows, int Cols, class RowTile, class Tile>
  TILEWISE_INLINE static void multiply(Accumulators<Rows, Cols>& scores, const RowTile& rows, int first_row,
                                       const Tile& tile) {
    const int lane = product_lane<(kTight || Tile::kCols > 128)>();
    TILEWISE_UNROLL
    for (int k = 0; k < Tile::kCols / 16; ++k) {
      keep_order<Machine>();
      RdnaOperand own[Rows / 16];
      TILEWISE_UNROLL
      for (int r = 0; r < Rows / 16; ++r) own[r] = load_operand(rows, lane, first_row + 16 * r, k);
      TILEWISE_UNROLL
      for (int c = 0; c < Cols / 16; ++c) {
        const RdnaOperand keys = load_operand(tile, lane, 16 * c, k);
        TILEWISE_UNROLL
        for (int r = 0; r < Rows / 16; ++r) {
          Machine::template mma_16x16x16<kElement>(scores.tile[r][c], keys, own[r]);
        }
      }
    }
  }

  /// Rounds accumulators to elements, as the operand of accumulate(). Half h of the lanes holds columns
  /// 2i + h: words of its own pairs and of the other half's are interleaved.
  template <int kElement, int Rows, int Cols>
  TILEWISE_INLINE static RowOperand<Rows, Cols> to_operand(const Accumulators<Rows, Cols>& from) {
    const bool upper = Machine::lane() >= 16;
    const uint32_t low_pair = upper ? 0x01000504u : 0x05040100u, high_pair = upper ? 0x03020706u : 0x07060302u;
    RowOperand<Rows, Cols> to;
    TILEWISE_UNROLL
    for (int r = 0; r < Rows / 16; ++r) {
      TILEWISE_UNROLL
      for (int k = 0; k < Cols / 16; ++k) {
        const RdnaAccumulator& tile = from.tile[r][k];
        TILEWISE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const uint32_t own = Machine::template pack_nearest<kElement>(tile[2 * i], tile[2 * i + 1]);
          const uint32_t other = Machine::swap_halves(own);
          to.step[r][k][2 * i] = Machine::choose_bytes(own, other, low_pair);
          to.step[r][k][2 * i + 1] = Machine::choose_bytes(own, other, high_pair);
        }
      }
    }
    return to;
  }

  /// out += weights * tile; the tile is the transposed copy: its columns are the weights' columns.
  template <int kElement, int Rows, int Cols, int Depth, class Tile>
  TILEWISE_INLINE static void accumulate(Accumulators<Rows, Depth>& out, const RowOperand<Rows, Cols>& weights,
                                         const Tile& tile) {
    const int lane = product_lane<(Depth >= 128)>();
    TILEWISE_UNROLL
    for (int k = 0; k < Cols / 16; ++k) {
      TILEWISE_UNROLL
      for (int d = 0; d < Depth / 16; ++d) {
        if (d % 4 == 0) keep_order<Machine>();
        const RdnaOperand values = load_operand(tile, lane, 16 * d, k);
        TILEWISE_UNROLL
        for (int r = 0; r < Rows / 16; ++r) {
          Machine::template mma_16x16x16<kElement>(out.tile[r][d], values, weights.step[r][k]);
        }
      }
    }
  }

  /// Where keys [key, key + 4) of a depth stand in a transposed tile (key a multiple of 4).
  template <class Tile>
  TILEWISE_INLINE static uint16_t* transposed_place(Tile& tile, int depth, int key) {
    return tile.chunk(depth, key / kChunk) + key % kChunk;
  }

 private:
  /// kTight: the addresses that follow are worked out for each product instead of staying in registers.
  template <bool kTight>
  TILEWISE_INLINE static int product_lane() {
    return kTight ? Machine::not_hoisted(Machine::lane()) : Machine::lane();
  }

  template <class Tile>
  TILEWISE_INLINE static RdnaOperand load_operand(const Tile& tile, int lane, int first_row, int k) {
    const int row = lane % 16;
    const Chunk low = Machine::template load_shared<Chunk>(tile.chunk(first_row, row, 2 * k, 0));
    const Chunk high = Machine::template load_shared<Chunk>(tile.chunk(first_row, row, 2 * k, 1));
    return join(low, high);
  }
  TILEWISE_INLINE static RdnaOperand join(const Chunk& low, const Chunk& high) {
    return RdnaOperand{low.word[0],  low.word[1],  low.word[2],  low.word[3],
                       high.word[0], high.word[1], high.word[2], high.word[3]};
  }
};

}  // namespace tilewise::device
