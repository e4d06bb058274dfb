// Tile operations on mma.sync (NVIDIA, sm_80 and newer): scores come with queries as rows, and an
// accumulator's registers are, pair by pair, the next product's left operand.
#pragma once

#include "device/portable/fragment.h"
#include "device/portable/machine_sm80_types.h"
#include "device/portable/stream_tile.h"

namespace tilewise::device {

template <class Machine_>
struct Sm80Ops {
  using Machine = Machine_;
  using Layout = Sm80Layout;
  static constexpr bool kAsyncCopies = true;
  static constexpr bool kTransposedCopies = false;
  static constexpr bool kDirectRows = false;
  static constexpr int kRoomyDims = 1 << 20;  // tiles on their way take no registers

  /// Waits for this lane's copies under way; a barrier then makes them visible to all.
  TILEWISE_INLINE static void finish_copies() {
    Machine::commit_copies();  // of copies outside a loader, which belong to no group yet
    Machine::template wait_copies<0>();
  }

  template <int Rows, int Cols>
  using Accumulators = Fragment<Layout, Sm80Accumulator, Rows, Cols>;

  /// A left operand in registers: 16 x 16 elements in 4 words.
  template <int Rows, int Depth>
  struct RowOperand {
    uint32_t word[Rows / 16][Depth / 16][4];
  };

  /// Reads the operand of rows [first_row, first_row + Rows) and columns [first_col, first_col + Depth) of a
  /// tile. First rows and columns are multiples of what follows them, here and below.
  template <int Rows, int Depth, class Tile>
  TILEWISE_INLINE static void load_rows(RowOperand<Rows, Depth>& to, const Tile& tile, int first_row,
                                        int first_col = 0) {
    TILEWISE_UNROLL
    for (int r = 0; r < Rows / 16; ++r) {
      TILEWISE_UNROLL
      for (int k = 0; k < Depth / 16; ++k) load_left(to.word[r][k], tile, first_row, first_col, r, k);
    }
  }

  /// scores += rows * tile^T, the rows held in registers.
  template <int kElement, int Rows, int Cols, int Depth, class Tile>
  TILEWISE_INLINE static void multiply(Accumulators<Rows, Cols>& scores, const RowOperand<Rows, Depth>& rows,
                                       const Tile& tile) {
    TILEWISE_UNROLL
    for (int k = 0; k < Depth / 16; ++k) {
      uint32_t left[Rows / 16][4];
      TILEWISE_UNROLL
      for (int r = 0; r < Rows / 16; ++r) {
        TILEWISE_UNROLL
        for (int i = 0; i < 4; ++i) left[r][i] = rows.word[r][k][i];
      }
      multiply_step<kElement>(scores, left, tile, k);
    }
  }

  /// scores += rows * tile^T, the rows read from shared memory as they are needed. Of the tile's rows
  /// [first_col, first_col + Cols) take part.
  template <int kElement, bool kTight = false, int Rows, int Cols, class RowTile, class Tile>
  TILEWISE_INLINE static void multiply(Accumulators<Rows, Cols>& scores, const RowTile& rows, int first_row,
                                       const Tile& tile, int first_col = 0) {
    TILEWISE_UNROLL
    for (int k = 0; k < Tile::kCols / 16; ++k) {
      uint32_t left[Rows / 16][4];
      TILEWISE_UNROLL
      for (int r = 0; r < Rows / 16; ++r) load_left(left[r], rows, first_row, 0, r, k);
      multiply_step<kElement>(scores, left, tile, k, first_col);
    }
  }

  /// Rounds accumulators to elements, as the left operand of accumulate().
  template <int kElement, int Rows, int Cols>
  TILEWISE_INLINE static RowOperand<Rows, Cols> to_operand(const Accumulators<Rows, Cols>& from) {
    RowOperand<Rows, Cols> to;
    TILEWISE_UNROLL
    for (int r = 0; r < Rows / 16; ++r) {
      TILEWISE_UNROLL
      for (int k = 0; k < Cols / 16; ++k) {
        TILEWISE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const Sm80Accumulator& tile = from.tile[r][2 * k + i / 2];
          to.word[r][k][i] = Machine::template pack<kElement>(tile[2 * (i % 2)], tile[2 * (i % 2) + 1]);
        }
      }
    }
    return to;
  }

  /// out += weights * tile; the tile's rows from first_row on are the weights' columns. Where waves share
  /// the rows of `out`, each has a part of its columns.
  template <int kElement, int Rows, int Cols, int Depth, class Tile, int kParts = 1>
  TILEWISE_INLINE static void accumulate(Accumulators<Rows, Depth>& out, const RowOperand<Rows, Cols>& weights,
                                         const Tile& tile, int first_row = 0, ColumnPart<kParts> part = {0}) {
    TILEWISE_UNROLL
    for (int k = 0; k < Cols / 16; ++k) {
      accumulate_step<kElement>(
          out, [&](int r) -> const uint32_t (&)[4] { return weights.word[r][k]; }, tile, first_row, k, part);
    }
  }

  /// out += weights^T * tile: rows of both tiles meet, and columns [first_row, first_row + Rows) of the weights
  /// are rows of `out`.
  template <int kElement, int Rows, int Depth, class Weights, class Tile, int kParts>
  TILEWISE_INLINE static void accumulate_transposed(Accumulators<Rows, Depth>& out, const Weights& weights,
                                                    int first_row, const Tile& tile, ColumnPart<kParts> part) {
    const int lane = Machine::lane(), matrix = lane / 8;
    TILEWISE_UNROLL
    for (int k = 0; k < Weights::kRows / 16; ++k) {
      uint32_t left[Rows / 16][4];
      TILEWISE_UNROLL
      for (int r = 0; r < Rows / 16; ++r) {
        Machine::load_matrices_transposed(
            left[r], weights.chunk(16 * k, 8 * (matrix / 2) + lane % 8, 2 * r, first_row / kChunk + matrix % 2));
      }
      accumulate_step<kElement>(out, [&](int r) -> const uint32_t (&)[4] { return left[r]; }, tile, 0, k, part);
    }
  }

 private:
  template <class Tile>
  TILEWISE_INLINE static void load_left(uint32_t (&to)[4], const Tile& tile, int first_row, int first_col, int r,
                                        int k) {
    const int lane = Machine::lane(), matrix = lane / 8;
    Machine::load_matrices(
        to, tile.chunk(16 * r, first_row + 8 * (matrix % 2) + lane % 8, 2 * k, first_col / kChunk + matrix / 2));
  }

  template <int kElement, int Rows, int Cols, class Tile>
  TILEWISE_INLINE static void multiply_step(Accumulators<Rows, Cols>& scores, const uint32_t (&left)[Rows / 16][4],
                                            const Tile& tile, int k, int first_col = 0) {
    const int lane = Machine::lane(), matrix = lane / 8;
    TILEWISE_UNROLL
    for (int c = 0; c < Cols / 16; ++c) {
      uint32_t right[4];
      Machine::load_matrices(right, tile.chunk(16 * c, first_col + 8 * (matrix / 2) + lane % 8, 2 * k, matrix % 2));
      TILEWISE_UNROLL
      for (int r = 0; r < Rows / 16; ++r) {
        Machine::template mma<kElement>(scores.tile[r][2 * c], left[r], right[0], right[1]);
        Machine::template mma<kElement>(scores.tile[r][2 * c + 1], left[r], right[2], right[3]);
      }
    }
  }

  /// One step of 16 along the products' sum. left(r): the operand of row tile r.
  template <int kElement, int Rows, int Depth, class Left, class Tile, int kParts>
  TILEWISE_INLINE static void accumulate_step(Accumulators<Rows, Depth>& out, const Left& left, const Tile& tile,
                                              int first_row, int k, ColumnPart<kParts> part) {
    const int lane = Machine::lane(), matrix = lane / 8;
    TILEWISE_UNROLL
    for (int d = 0; d < Depth / 16; ++d) {
      uint32_t right[4];
      Machine::load_matrices_transposed(right, tile.chunk(16 * k, first_row + 8 * (matrix % 2) + lane % 8,
                                                          2 * kParts * d, 2 * part.index + matrix / 2));
      TILEWISE_UNROLL
      for (int r = 0; r < Rows / 16; ++r) {
        Machine::template mma<kElement>(out.tile[r][2 * d], left(r), right[0], right[1]);
        Machine::template mma<kElement>(out.tile[r][2 * d + 1], left(r), right[2], right[3]);
      }
    }
  }
};

}  // namespace tilewise::device
