// Tile operations on WMMA 16x16x16 in waves of 32 (AMD RDNA3): products come transposed, B's rows as the
// instruction's rows, so that a lane holds one row of A and every second row of B.
#pragma once

#include "device/tile/fragment.h"
#include "device/tile/registers.h"
#include "device/tile/stream_tile.h"

namespace tilewise::device {

template <class Machine_>
struct RdnaOps {
  using Machine = Machine_;
  using FragmentLayout = RdnaFragmentLayout;
  using Accumulator = RdnaAccumulator;
  static constexpr bool kAsyncCopies = false;
  static constexpr bool kTransposedCopies = true;
  static constexpr bool kDirectRows = true;  // gather_rows() loads a block's own rows
  static constexpr int kChunkMates = 1;      // how many blocks of 4 rows apart are those of a transposed chunk
  static constexpr int kRoomyDims = 192;     // widths of a wave's two operands together beyond which registers are few
  static constexpr int kMostHeldBytes = 32;  // of a tile on its way, a lane, where registers are few

  static constexpr bool kMachineMultiplies = requires(RdnaAccumulator& d, RdnaOperand a, uint32_t word, float x) {
    Machine::template mma_16x16x16<kBf16>(d, a, a);  // d += a * b^T of 16 x 16 and 16 x 16 elements
    Machine::template mma_16x16x16<kF16>(d, a, a);
    Machine::template pack_nearest<kBf16>(x, x);  // pack(), with ties away from zero where that is faster
    Machine::template pack_nearest<kF16>(x, x);
    Machine::swap_halves(word);               // the word of the lane that differs in bit 4
    Machine::choose_bytes(word, word, word);  // four bytes out of eight
  };

  TILEWISE_INLINE static void finish_copies() {}

  /// An operand in registers: row lane % 16, all 16 elements of a step, in both halves of the lanes.
  template <int Element, int Rows, int Depth>
  struct Operand {
    static constexpr int kElement = Element;
    RdnaOperand step[Rows / 16][Depth / 16];
  };

  /// Fills an operand from global memory: load(row, chunk) returns 8 elements of a row of the wave.
  template <int kElement, int Rows, int Depth, class Load>
  TILEWISE_INLINE static void gather_rows(Operand<kElement, Rows, Depth>& to, const Load& load) {
    const int lane = Machine::lane();
    TILEWISE_UNROLL
    for (int r = 0; r < Rows / 16; ++r) {
      TILEWISE_UNROLL
      for (int k = 0; k < Depth / 16; ++k) {
        to.step[r][k] = join(load(16 * r + lane % 16, 2 * k), load(16 * r + lane % 16, 2 * k + 1));
      }
    }
  }

  /// to += A B^T, A held in registers.
  template <int kElement, int Rows, int Cols, int Depth, class Tile>
  TILEWISE_INLINE static void mma_ABt(Fragment<RdnaOps, Rows, Cols>& to, const Operand<kElement, Rows, Depth>& a,
                                      const Tile& b) {
    const int lane = product_lane<(Tile::kCols > 128)>();
    TILEWISE_UNROLL
    for (int k = 0; k < Depth / 16; ++k) {
      keep_order<Machine>();
      TILEWISE_UNROLL
      for (int c = 0; c < Cols / 16; ++c) {
        const RdnaOperand right = read_step(b, lane, 16 * c, k);
        TILEWISE_UNROLL
        for (int r = 0; r < Rows / 16; ++r) {
          Machine::template mma_16x16x16<kElement>(to.tile[r][c], right, a.step[r][k]);
        }
      }
    }
  }

  /// to += A B^T, A read from shared memory as it is needed.
  template <int Rows, int Cols, class Own, bool kTight, class Tile>
  TILEWISE_INLINE static void mma_ABt(Fragment<RdnaOps, Rows, Cols>& to, const TilePart<Own, kTight>& a,
                                      const Tile& b) {
    const auto right = part_of(b);
    const int lane = product_lane<(kTight || Own::kCols > 128)>();
    TILEWISE_UNROLL
    for (int k = 0; k < Own::kCols / 16; ++k) {
      keep_order<Machine>();
      RdnaOperand own[Rows / 16];
      TILEWISE_UNROLL
      for (int r = 0; r < Rows / 16; ++r) own[r] = read_step(a.tile, lane, a.first_row + 16 * r, k);
      TILEWISE_UNROLL
      for (int c = 0; c < Cols / 16; ++c) {
        const RdnaOperand other = read_step(right.tile, lane, right.first_row + 16 * c, k);
        TILEWISE_UNROLL
        for (int r = 0; r < Rows / 16; ++r) {
          Machine::template mma_16x16x16<Own::kElement>(to.tile[r][c], other, own[r]);
        }
      }
    }
  }

  /// Rounds accumulators to elements, as the left operand of mma_AB(). Half h of the lanes holds columns
  /// 2i + h: words of its own pairs and of the other half's are interleaved.
  template <int kElement, int Rows, int Cols>
  TILEWISE_INLINE static Operand<kElement, Rows, Cols> to_operand(const Fragment<RdnaOps, Rows, Cols>& from) {
    const bool upper = Machine::lane() >= 16;
    const uint32_t low_pair = upper ? 0x01000504u : 0x05040100u, high_pair = upper ? 0x03020706u : 0x07060302u;
    Operand<kElement, Rows, Cols> to;
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

  /// to += A B; b is the transposed copy of B: its columns are A's columns.
  template <int kElement, int Rows, int Cols, int Depth, class Tile>
  TILEWISE_INLINE static void mma_AB(Fragment<RdnaOps, Rows, Depth>& to, const Operand<kElement, Rows, Cols>& a,
                                     const Tile& b) {
    const int lane = product_lane<(Depth >= 128)>();
    TILEWISE_UNROLL
    for (int k = 0; k < Cols / 16; ++k) {
      TILEWISE_UNROLL
      for (int d = 0; d < Depth / 16; ++d) {
        if (d % 4 == 0) keep_order<Machine>();
        const RdnaOperand right = read_step(b, lane, 16 * d, k);
        TILEWISE_UNROLL
        for (int r = 0; r < Rows / 16; ++r) {
          Machine::template mma_16x16x16<kElement>(to.tile[r][d], right, a.step[r][k]);
        }
      }
    }
  }

  /// Where rows [row, row + 4) of a column stand in a transposed tile (row a multiple of 4).
  template <class Tile>
  TILEWISE_INLINE static auto* transposed_place(Tile& tile, int col, int row) {
    return tile.chunk(col, row / kChunk) + row % kChunk;
  }

 private:
  /// kTight: the addresses that follow are worked out for each product instead of staying in registers.
  template <bool kTight>
  TILEWISE_INLINE static int product_lane() {
    return kTight ? Machine::not_hoisted(Machine::lane()) : Machine::lane();
  }

  template <class Tile>
  TILEWISE_INLINE static RdnaOperand read_step(const Tile& tile, int lane, int first_row, int k) {
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
