// Tile operations on MFMA 32x32 (AMD CDNA): products come transposed, B's rows as the instruction's rows, so
// that a lane holds one row of A, and its registers, packed, are the next product's right operand.
#pragma once

#include "device/tile/fragment.h"
#include "device/tile/registers.h"
#include "device/tile/stream_tile.h"

namespace tilewise::device {

template <class Machine_>
struct CdnaOps {
  using Machine = Machine_;
  using FragmentLayout = CdnaFragmentLayout;
  using Accumulator = CdnaAccumulator;
  static constexpr bool kAsyncCopies = false;
  static constexpr bool kTransposedCopies = true;
  static constexpr bool kDirectRows = true;  // gather_rows() loads a block's own rows
  static constexpr int kChunkMates = 2;      // how many blocks of 4 rows apart are those of a transposed chunk
  static constexpr int kRoomyDims = 448;     // widths of a wave's two operands together beyond which registers are few
  static constexpr int kMostHeldBytes = 64;  // of a tile on its way, a lane, where registers are few

  static constexpr bool kMachineMultiplies = requires(CdnaAccumulator& d, CdnaOperand a, float x) {
    Machine::template mma_32x32x16<kBf16>(d, a, a);  // d += a * b^T of 32 x 16 and 32 x 16 elements
    Machine::template mma_32x32x16<kF16>(d, a, a);
    Machine::template pack_nearest<kBf16>(x, x);  // pack(), with ties away from zero where that is faster
    Machine::template pack_nearest<kF16>(x, x);
  };

  TILEWISE_INLINE static void finish_copies() {}

  /// An operand in registers: of each 16 elements of row lane % 32, the 8 of half lane / 32.
  template <int Element, int Rows, int Depth>
  struct Operand {
    static constexpr int kElement = Element;
    CdnaOperand step[Rows / 32][Depth / 16];
  };

  /// Fills an operand from global memory: load(row, chunk) returns 8 elements of a row of the wave.
  template <int kElement, int Rows, int Depth, class Load>
  TILEWISE_INLINE static void gather_rows(Operand<kElement, Rows, Depth>& to, const Load& load) {
    const int lane = Machine::lane();
    TILEWISE_UNROLL
    for (int r = 0; r < Rows / 32; ++r) {
      TILEWISE_UNROLL
      for (int k = 0; k < Depth / 16; ++k) {
        to.step[r][k] = __builtin_bit_cast(CdnaOperand, load(32 * r + lane % 32, 2 * k + lane / 32));
      }
    }
  }

  /// to += A B^T, A held in registers.
  template <int kElement, int Rows, int Cols, int Depth, class Tile>
  TILEWISE_INLINE static void mma_ABt(Fragment<CdnaOps, Rows, Cols>& to, const Operand<kElement, Rows, Depth>& a,
                                      const Tile& b) {
    TILEWISE_UNROLL
    for (int k = 0; k < Depth / 16; ++k) {
      TILEWISE_UNROLL
      for (int c = 0; c < Cols / 32; ++c) {
        const CdnaOperand right = read_step(b, 32 * c, k);
        TILEWISE_UNROLL
        for (int r = 0; r < Rows / 32; ++r) {
          Machine::template mma_32x32x16<kElement>(to.tile[r][c], right, a.step[r][k]);
        }
      }
    }
  }

  /// to += A B^T, A read from shared memory as it is needed.
  template <int Rows, int Cols, class Own, bool kTight, class Tile>
  TILEWISE_INLINE static void mma_ABt(Fragment<CdnaOps, Rows, Cols>& to, const TilePart<Own, kTight>& a,
                                      const Tile& b) {
    const auto right = part_of(b);
    TILEWISE_UNROLL
    for (int k = 0; k < Own::kCols / 16; ++k) {
      CdnaOperand own[Rows / 32];
      TILEWISE_UNROLL
      for (int r = 0; r < Rows / 32; ++r) own[r] = read_step(a.tile, a.first_row + 32 * r, k);
      TILEWISE_UNROLL
      for (int c = 0; c < Cols / 32; ++c) {
        const CdnaOperand other = read_step(right.tile, right.first_row + 32 * c, k);
        TILEWISE_UNROLL
        for (int r = 0; r < Rows / 32; ++r) {
          Machine::template mma_32x32x16<Own::kElement>(to.tile[r][c], other, own[r]);
        }
      }
    }
  }

  /// to += A B^T, B held in registers, A read from shared memory as it is needed.
  template <int kElement, int Rows, int Cols, int Depth, class Own, bool kTight>
  TILEWISE_INLINE static void mma_ABt(Fragment<CdnaOps, Rows, Cols>& to, const TilePart<Own, kTight>& a,
                                      const Operand<kElement, Cols, Depth>& b) {
    TILEWISE_UNROLL
    for (int k = 0; k < Depth / 16; ++k) {
      TILEWISE_UNROLL
      for (int r = 0; r < Rows / 32; ++r) {
        const CdnaOperand own = read_step(a.tile, a.first_row + 32 * r, k);
        TILEWISE_UNROLL
        for (int c = 0; c < Cols / 32; ++c) {
          Machine::template mma_32x32x16<kElement>(to.tile[r][c], b.step[c][k], own);
        }
      }
    }
  }

  /// Rounds accumulators to elements, as the left operand of mma_AB(). Of the 16 columns of a step, a
  /// lane of half h holds {4h..4h+3, 8+4h..8+4h+3}: transposed_place() stores them in that order.
  template <int kElement, int Rows, int Cols>
  TILEWISE_INLINE static Operand<kElement, Rows, Cols> to_operand(const Fragment<CdnaOps, Rows, Cols>& from) {
    Operand<kElement, Rows, Cols> to;
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

  /// to += A B; b is the transposed copy of B: its columns are A's columns.
  template <int kElement, int Rows, int Cols, int Depth, class Tile>
  TILEWISE_INLINE static void mma_AB(Fragment<CdnaOps, Rows, Depth>& to, const Operand<kElement, Rows, Cols>& a,
                                     const Tile& b) {
    TILEWISE_UNROLL
    for (int k = 0; k < Cols / 16; ++k) {
      TILEWISE_UNROLL
      for (int d = 0; d < Depth / 32; ++d) {
        const CdnaOperand right = read_step(b, 32 * d, k);
        TILEWISE_UNROLL
        for (int r = 0; r < Rows / 32; ++r) {
          Machine::template mma_32x32x16<kElement>(to.tile[r][d], right, a.step[r][k]);
        }
      }
    }
  }

  /// Where rows [row, row + 4) of a column stand in a transposed tile (row a multiple of 4): bits 2 and
  /// 3 of the row change places, so that 16 bytes hold what one half of the lanes multiplies.
  template <class Tile>
  TILEWISE_INLINE static auto* transposed_place(Tile& tile, int col, int row) {
    return tile.chunk(col, row / 16 * 2 + row / 4 % 2) + 4 * (row / 8 % 2);
  }

 private:
  template <class Tile>
  TILEWISE_INLINE static CdnaOperand read_step(const Tile& tile, int first_row, int k) {
    const int lane = Machine::lane();
    return Machine::template load_shared<CdnaOperand>(tile.chunk(first_row, lane % 32, 2 * k, lane / 32));
  }
};

}  // namespace tilewise::device
