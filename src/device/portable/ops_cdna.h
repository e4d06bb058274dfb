// Tile operations on MFMA 32x32 (AMD CDNA): scores come transposed, keys as the instruction's rows, so
// that a lane holds one query, and its registers, packed, are the next product's right operand.
#pragma once

#include "device/portable/fragment.h"
#include "device/portable/machine_cdna_types.h"
#include "device/portable/stream_tile.h"

namespace tilewise::device {

template <class Machine_>
struct CdnaOps {
  using Machine = Machine_;
  using Layout = CdnaLayout;
  static constexpr bool kAsyncCopies = false;
  static constexpr bool kTransposedCopies = true;
  static constexpr bool kDirectRows = true;  // gather_rows() brings a block's own rows
  static constexpr int kChunkMates = 2;      // how many blocks of 4 keys apart are those of a transposed chunk
  static constexpr int kRoomyDims = 448;     // head_dim + head_dim_v beyond which registers are few
  static constexpr int kMostHeldBytes = 64;  // of a tile on its way, a lane, where registers are few

  TILEWISE_INLINE static void finish_copies() {}

  template <int Rows, int Cols>
  using Accumulators = Fragment<Layout, CdnaAccumulator, Rows, Cols>;

  /// An operand in registers: of each 16 elements of row lane % 32, the 8 of half lane / 32.
  template <int Rows, int Depth>
  struct RowOperand {
    CdnaOperand step[Rows / 32][Depth / 16];
  };

  /// Fills an operand from global memory: load(row, chunk) brings 8 elements of a row of the wave.
  template <int Rows, int Depth, class Load>
  TILEWISE_INLINE static void gather_rows(RowOperand<Rows, Depth>& to, const Load& load) {
    const int lane = Machine::lane();
    TILEWISE_UNROLL
    for (int r = 0; r < Rows / 32; ++r) {
      TILEWISE_UNROLL
      for (int k = 0; k < Depth / 16; ++k) {
        to.step[r][k] = __builtin_bit_cast(CdnaOperand, load(32 * r + lane % 32, 2 * k + lane / 32));
      }
    }
  }

  /// scores += rows * tile^T, the rows held in registers.
  template <int kElement, int Rows, int Cols, int Depth, class Tile>
  TILEWISE_INLINE static void multiply(Accumulators<Rows, Cols>& scores, const RowOperand<Rows, Depth>& rows,
                                       const Tile& tile) {
    TILEWISE_UNROLL
    for (int k = 0; k < Depth / 16; ++k) {
      TILEWISE_UNROLL
      for (int c = 0; c < Cols / 32; ++c) {
        const CdnaOperand keys = load_operand(tile, 32 * c, k);
        TILEWISE_UNROLL
        for (int r = 0; r < Rows / 32; ++r) {
          Machine::template mma_32x32x16<kElement>(scores.tile[r][c], keys, rows.step[r][k]);
        }
      }
    }
  }

  /// scores += rows * tile^T, the rows read from shared memory as they are needed.
  template <int kElement, bool kTight = false, int Rows, int Cols, class RowTile, class Tile>
  TILEWISE_INLINE static void multiply(Accumulators<Rows, Cols>& scores, const RowTile& rows, int first_row,
                                       const Tile& tile) {
    TILEWISE_UNROLL
    for (int k = 0; k < Tile::kCols / 16; ++k) {
      CdnaOperand own[Rows / 32];
      TILEWISE_UNROLL
      for (int r = 0; r < Rows / 32; ++r) own[r] = load_operand(rows, first_row + 32 * r, k);
      TILEWISE_UNROLL
      for (int c = 0; c < Cols / 32; ++c) {
        const CdnaOperand keys = load_operand(tile, 32 * c, k);
        TILEWISE_UNROLL
        for (int r = 0; r < Rows / 32; ++r) {
          Machine::template mma_32x32x16<kElement>(scores.tile[r][c], keys, own[r]);
        }
      }
    }
  }

  /// Rounds accumulators to elements, as the operand of accumulate(). Of the 16 columns of a step, a
  /// lane of half h holds {4h..4h+3, 8+4h..8+4h+3}: transposed_place() stores them in that order.
  template <int kElement, int Rows, int Cols>
  TILEWISE_INLINE static RowOperand<Rows, Cols> to_operand(const Accumulators<Rows, Cols>& from) {
    RowOperand<Rows, Cols> to;
    TILEWISE_UNROLL
    for (int r = 0; r < Rows / 32; ++r) {
      TILEWISE_UNROLL
      for (int k = 0; k < Cols / 16; ++k) {
        TILEWISE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const CdnaAccumulator& tile = from.tile[r][k / 2];
          const int first = 8 * (k % 2) + 2 * i;
          to.step[r][k][i] = Machine::template pack_nearest<kElement>(tile[first], tile[first + 1]);
        }
      }
    }
    return to;
  }

  /// out += weights * tile; the tile is the transposed copy: its columns are the weights' columns.
  template <int kElement, int Rows, int Cols, int Depth, class Tile>
  TILEWISE_INLINE static void accumulate(Accumulators<Rows, Depth>& out, const RowOperand<Rows, Cols>& weights,
                                         const Tile& tile) {
    TILEWISE_UNROLL
    for (int k = 0; k < Cols / 16; ++k) {
      TILEWISE_UNROLL
      for (int d = 0; d < Depth / 32; ++d) {
        const CdnaOperand values = load_operand(tile, 32 * d, k);
        TILEWISE_UNROLL
        for (int r = 0; r < Rows / 32; ++r) {
          Machine::template mma_32x32x16<kElement>(out.tile[r][d], values, weights.step[r][k]);
        }
      }
    }
  }

  /// Where keys [key, key + 4) of a depth stand in a transposed tile (key a multiple of 4): bits 2 and
  /// 3 of the key change places, so that 16 bytes hold what one half of the lanes multiplies.
  template <class Tile>
  TILEWISE_INLINE static uint16_t* transposed_place(Tile& tile, int depth, int key) {
    return tile.chunk(depth, key / 16 * 2 + key / 4 % 2) + 4 * (key / 8 % 2);
  }

 private:
  template <class Tile>
  TILEWISE_INLINE static CdnaOperand load_operand(const Tile& tile, int first_row, int k) {
    const int lane = Machine::lane();
    return Machine::template load_shared<CdnaOperand>(tile.chunk(first_row, lane % 32, 2 * k, lane / 32));
  }
};

}  // namespace tilewise::device
