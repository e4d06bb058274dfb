// Tile operations on WMMA whose two halves of a wave hold different elements (AMD RDNA4, gfx1250): products come
// transposed, B's rows as the instruction's rows, so that a lane holds 8 adjacent columns of one row of A, and its
// registers, packed, are the next product's right operand.
#pragma once

#include "device/tile/fragment.h"
#include "device/tile/registers.h"
#include "device/tile/stream_tile.h"

namespace tilewise::device {

template <class Machine_>
struct Rdna4Ops {
  using Machine = Machine_;
  using FragmentLayout = Rdna4FragmentLayout;
  using Accumulator = RdnaAccumulator;
  static constexpr bool kAsyncCopies = false;
  static constexpr bool kTransposedCopies = true;
  static constexpr bool kDirectRows = true;  // gather_rows() loads a block's own rows
  static constexpr int kChunkMates = 1;      // how many blocks of 4 rows apart are those of a transposed chunk
  static constexpr int kRoomyDims = Machine::kRoomyDims;  // see contract.h
  static constexpr int kMostHeldBytes = 32;               // of a tile on its way, a lane, where registers are few

  /// Of the contraction, 16 elements each, that one instruction takes.
  static constexpr int kSteps = Machine::kSteps;
  using Steps = Rdna4Steps<kSteps>;

  static constexpr bool kMachineMultiplies = requires(RdnaAccumulator& d, Steps a, float x) {
    Machine::template mma_16x16<kBf16>(d, a, a);  // d += a * b^T of 16 rows and 16 rows of kSteps * 16 elements
    Machine::template mma_16x16<kF16>(d, a, a);
    Machine::template pack_nearest<kBf16>(x, x);  // pack(), with ties away from zero where that is faster
    Machine::template pack_nearest<kF16>(x, x);
  };

  TILEWISE_INLINE static void finish_copies() {}

  /// An operand in registers: of each 16 elements of row lane % 16, the 8 of half lane / 16.
  template <int Element, int Rows, int Depth>
  struct Operand {
    static constexpr int kElement = Element;
    Rdna4Operand step[Rows / 16][Depth / 16];
  };

  /// Fills an operand from global memory: load(row, chunk) returns 8 elements of a row of the wave.
  template <int kElement, int Rows, int Depth, class Load>
  TILEWISE_INLINE static void gather_rows(Operand<kElement, Rows, Depth>& to, const Load& load) {
    const int lane = Machine::lane();
    TILEWISE_UNROLL
    for (int r = 0; r < Rows / 16; ++r) {
      TILEWISE_UNROLL
      for (int k = 0; k < Depth / 16; ++k) {
        to.step[r][k] = __builtin_bit_cast(Rdna4Operand, load(16 * r + lane % 16, 2 * k + lane / 16));
      }
    }
  }

  /// to += A B^T, A held in registers.
  template <int kElement, int Rows, int Cols, int Depth, class Tile>
  TILEWISE_INLINE static void mma_ABt(Fragment<Rdna4Ops, Rows, Cols>& to, const Operand<kElement, Rows, Depth>& a,
                                      const Tile& b) {
    const int lane = product_lane<(Tile::kCols > 128)>();
    TILEWISE_UNROLL
    for (int k = 0; k < Depth / 16; k += kSteps) {
      keep_order<Machine>();
      TILEWISE_UNROLL
      for (int c = 0; c < Cols / 16; ++c) {
        const Steps right = read_steps(b, lane, 16 * c, k, Depth / 16);
        TILEWISE_UNROLL
        for (int r = 0; r < Rows / 16; ++r) {
          Machine::template mma_16x16<kElement>(to.tile[r][c], right, steps_of(a.step[r], k));
        }
      }
    }
  }

  /// to += A B^T, A read from shared memory as it is needed.
  template <int Rows, int Cols, class Own, bool kTight, class Tile>
  TILEWISE_INLINE static void mma_ABt(Fragment<Rdna4Ops, Rows, Cols>& to, const TilePart<Own, kTight>& a,
                                      const Tile& b) {
    constexpr int kDepthSteps = Own::kCols / 16;
    const auto right = part_of(b);
    const int lane = product_lane<(kTight || Own::kCols > 128)>();
    TILEWISE_UNROLL
    for (int k = 0; k < kDepthSteps; k += kSteps) {
      // Products wait for no memory: without it the compiler reads all of two wide operands, 256 registers, before
      // them.
      if (Own::kCols > 192) to.for_each_tile([](auto& tile) { compute_by_here<Machine>(tile); });
      keep_order<Machine>();
      Steps own[Rows / 16];
      TILEWISE_UNROLL
      for (int r = 0; r < Rows / 16; ++r) own[r] = read_steps(a.tile, lane, a.first_row + 16 * r, k, kDepthSteps);
      TILEWISE_UNROLL
      for (int c = 0; c < Cols / 16; ++c) {
        const Steps other = read_steps(right.tile, lane, right.first_row + 16 * c, k, kDepthSteps);
        TILEWISE_UNROLL
        for (int r = 0; r < Rows / 16; ++r) {
          Machine::template mma_16x16<Own::kElement>(to.tile[r][c], other, own[r]);
        }
      }
    }
  }

  /// Rounds accumulators to elements, as the left operand of mma_AB(): a lane's 8 columns are its part of 16.
  template <int kElement, int Rows, int Cols>
  TILEWISE_INLINE static Operand<kElement, Rows, Cols> to_operand(const Fragment<Rdna4Ops, Rows, Cols>& from) {
    Operand<kElement, Rows, Cols> to;
    TILEWISE_UNROLL
    for (int r = 0; r < Rows / 16; ++r) {
      TILEWISE_UNROLL
      for (int k = 0; k < Cols / 16; ++k) {
        const RdnaAccumulator& tile = from.tile[r][k];
        TILEWISE_UNROLL
        for (int i = 0; i < 4; ++i) {
          to.step[r][k][i] = Machine::template pack_nearest<kElement>(tile[2 * i], tile[2 * i + 1]);
        }
      }
    }
    return to;
  }

  /// to += A B; b is the transposed copy of B: its columns are A's columns.
  template <int kElement, int Rows, int Cols, int Depth, class Tile>
  TILEWISE_INLINE static void mma_AB(Fragment<Rdna4Ops, Rows, Depth>& to, const Operand<kElement, Rows, Cols>& a,
                                     const Tile& b) {
    const int lane = product_lane<(Depth >= 128)>();
    TILEWISE_UNROLL
    for (int k = 0; k < Cols / 16; k += kSteps) {
      TILEWISE_UNROLL
      for (int d = 0; d < Depth / 16; ++d) {
        if (d % 4 == 0) keep_order<Machine>();
        const Steps right = read_steps(b, lane, 16 * d, k, Cols / 16);
        TILEWISE_UNROLL
        for (int r = 0; r < Rows / 16; ++r) {
          Machine::template mma_16x16<kElement>(to.tile[r][d], right, steps_of(a.step[r], k));
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

  /// Steps k and on of a row of so many; past the last one come zeros.
  template <int kCount>
  TILEWISE_INLINE static Steps steps_of(const Rdna4Operand (&row)[kCount], int k) {
    Steps steps{};
    TILEWISE_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      if (k + s < kCount) steps.step[s] = row[k + s];
    }
    return steps;
  }
  template <class Tile>
  TILEWISE_INLINE static Steps read_steps(const Tile& tile, int lane, int first_row, int k, int count) {
    Steps steps{};
    TILEWISE_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      if (k + s >= count) continue;
      steps.step[s] =
          Machine::template load_shared<Rdna4Operand>(tile.chunk(first_row, lane % 16, 2 * (k + s), lane / 16));
    }
    return steps;
  }
};

}  // namespace tilewise::device
