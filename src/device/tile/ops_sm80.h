// Tile operations on mma.sync (NVIDIA, sm_80 and newer): products come with A's rows as rows, and an
// accumulator's registers are, pair by pair, the next product's left operand.
#pragma once

#include "device/tile/byte_tile.h"
#include "device/tile/fragment.h"
#include "device/tile/registers.h"
#include "device/tile/stream_tile.h"

namespace tilewise::device {

template <class Machine_>
struct Sm80Ops {
  using Machine = Machine_;
  using FragmentLayout = Sm80FragmentLayout;
  using Accumulator = Sm80Accumulator;
  static constexpr bool kAsyncCopies = true;
  static constexpr bool kTransposedCopies = false;
  static constexpr bool kDirectRows = false;
  static constexpr int kRoomyDims = 1 << 20;  // tiles on their way take no registers

  static constexpr bool kMachineMultiplies = requires(Sm80Accumulator& d, uint32_t (&a)[4], const void* row) {
    Machine::template mma<kBf16>(d, a, 0u, 0u);  // d += a * b of 16 x 16 and 16 x 8 elements
    Machine::template mma<kF16>(d, a, 0u, 0u);
    Machine::load_matrices(a, row);  // four 8x8 matrices, of which lanes give the addresses of the rows
    Machine::load_matrices_transposed(a, row);
  };

  /// Waits for this lane's copies under way; a barrier then makes them visible to all.
  TILEWISE_INLINE static void finish_copies() {
    Machine::commit_copies();  // of copies outside a loader, which belong to no group yet
    Machine::template wait_copies<0>();
  }

  /// A left operand in registers: 16 x 16 elements in 4 words.
  template <int Element, int Rows, int Depth>
  struct Operand {
    static constexpr int kElement = Element;
    uint32_t word[Rows / 16][Depth / 16][4];
  };

  /// The same for products with a ByteTile: of 16 columns a lane has 4 adjacent ones, as bytes lie in a word, where
  /// 16-bit elements come by 2 and 2. The products' sum is the same.
  template <int Element, int Rows, int Depth>
  struct OperandByFours : Operand<Element, Rows, Depth> {};

  /// Reads an operand from a tile. First rows and columns are multiples of what follows them, here and below.
  template <int kElement, int Rows, int Depth, class Tile, bool kTight>
  TILEWISE_INLINE static void load_operand(Operand<kElement, Rows, Depth>& to, const TilePart<Tile, kTight>& from) {
    TILEWISE_UNROLL
    for (int r = 0; r < Rows / 16; ++r) {
      TILEWISE_UNROLL
      for (int k = 0; k < Depth / 16; ++k) load_left(to.word[r][k], from.tile, from.first_row, from.first_col, r, k);
    }
  }

  template <int kElement, int Rows, int Depth, class Tile, bool kTight>
  TILEWISE_INLINE static void load_operand(OperandByFours<kElement, Rows, Depth>& to,
                                           const TilePart<Tile, kTight>& from) {
    TILEWISE_UNROLL
    for (int r = 0; r < Rows / 16; ++r) {
      TILEWISE_UNROLL
      for (int k = 0; k < Depth / 16; ++k) load_left_by_fours(to.word[r][k], from, r, k);
    }
  }

  /// to += A B^T, A held in registers.
  template <int kElement, int Rows, int Cols, int Depth, class B>
  TILEWISE_INLINE static void mma_ABt(Fragment<Sm80Ops, Rows, Cols>& to, const Operand<kElement, Rows, Depth>& a,
                                      const B& b) {
    const auto right = part_of(b);
    TILEWISE_UNROLL
    for (int k = 0; k < Depth / 16; ++k) {
      uint32_t left[Rows / 16][4];
      TILEWISE_UNROLL
      for (int r = 0; r < Rows / 16; ++r) {
        TILEWISE_UNROLL
        for (int i = 0; i < 4; ++i) left[r][i] = a.word[r][k][i];
      }
      mma_ABt_step<kElement>(to, left, right.tile, k, right.first_row);
    }
  }

  /// to += A B^T, A read from shared memory as it is needed.
  template <int Rows, int Cols, class Tile, bool kTight, class B>
  TILEWISE_INLINE static void mma_ABt(Fragment<Sm80Ops, Rows, Cols>& to, const TilePart<Tile, kTight>& a, const B& b) {
    const auto right = part_of(b);
    TILEWISE_UNROLL
    for (int k = 0; k < Tile::kCols / 16; ++k) {
      uint32_t left[Rows / 16][4];
      TILEWISE_UNROLL
      for (int r = 0; r < Rows / 16; ++r) load_left(left[r], a.tile, a.first_row, 0, r, k);
      mma_ABt_step<Tile::kElement>(to, left, right.tile, k, right.first_row);
    }
  }

  /// The same of operands either of which may lie column by column.
  template <int Depth, int Rows, int Cols, class A, class B>
  TILEWISE_INLINE static void mma_parts(Fragment<Sm80Ops, Rows, Cols>& to, const A& a, const B& b) {
    TILEWISE_UNROLL
    for (int k = 0; k < Depth / 16; ++k) {
      uint32_t left[Rows / 16][4];
      TILEWISE_UNROLL
      for (int r = 0; r < Rows / 16; ++r) load_left_part(left[r], a, r, k);
      TILEWISE_UNROLL
      for (int c = 0; c < Cols / 16; ++c) {
        uint32_t right[4];
        load_right_part(right, b, c, k);
        TILEWISE_UNROLL
        for (int r = 0; r < Rows / 16; ++r) {
          Machine::template mma<A::kElement>(to.tile[r][2 * c], left[r], right[0], right[1]);
          Machine::template mma<A::kElement>(to.tile[r][2 * c + 1], left[r], right[2], right[3]);
        }
      }
    }
  }

  /// The same, B's bytes widened.
  template <int kElement, int Rows, int Cols, int Depth>
  TILEWISE_INLINE static void mma_ABt(Fragment<Sm80Ops, Rows, Cols>& to, const OperandByFours<kElement, Rows, Depth>& a,
                                      const ByteTile<kElement, Cols, Depth>& b) {
    TILEWISE_UNROLL
    for (int k = 0; k < Depth / 16; ++k) {
      mma_ABt_step(to, [&](int r) -> const uint32_t (&)[4] { return a.word[r][k]; }, b, k);
    }
  }
  template <int kElement, int Rows, int Cols, class Tile, bool kTight, int Depth>
  TILEWISE_INLINE static void mma_ABt(Fragment<Sm80Ops, Rows, Cols>& to, const TilePart<Tile, kTight>& a,
                                      const ByteTile<kElement, Cols, Depth>& b) {
    TILEWISE_UNROLL
    for (int k = 0; k < Depth / 16; ++k) {
      uint32_t left[Rows / 16][4];
      TILEWISE_UNROLL
      for (int r = 0; r < Rows / 16; ++r) load_left_by_fours(left[r], a, r, k);
      mma_ABt_step(to, [&](int r) -> const uint32_t (&)[4] { return left[r]; }, b, k);
    }
  }

  /// Rounds accumulators to elements, as the left operand of mma_AB().
  template <int kElement, int Rows, int Cols>
  TILEWISE_INLINE static Operand<kElement, Rows, Cols> to_operand(const Fragment<Sm80Ops, Rows, Cols>& from) {
    Operand<kElement, Rows, Cols> to;
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

  /// to += A B; B's rows are A's columns. Where waves share the rows of `to`, each has a part of its columns.
  template <int kElement, int Rows, int Cols, int Depth, class B, int kParts = 1>
  TILEWISE_INLINE static void mma_AB(Fragment<Sm80Ops, Rows, Depth>& to, const Operand<kElement, Rows, Cols>& a,
                                     const B& b, ColumnPart<kParts> part = {0}) {
    const auto right = part_of(b);
    TILEWISE_UNROLL
    for (int k = 0; k < Cols / 16; ++k) {
      mma_AB_step<kElement>(
          to, [&](int r) -> const uint32_t (&)[4] { return a.word[r][k]; }, right.tile, right.first_row, k, part);
    }
  }

  /// The same, B's bytes widened. A lane gets the bytes of two adjacent columns at once, which go to two accumulators:
  /// until join_columns() register i of accumulators 2c and 2c + 1 are adjacent columns.
  template <int kElement, int Rows, int Cols, int Depth>
  TILEWISE_INLINE static void mma_AB(Fragment<Sm80Ops, Rows, Depth, true>& to, const Operand<kElement, Rows, Cols>& a,
                                     const ByteTile<kElement, Cols, Depth>& b) {
    const int lane = Machine::lane(), matrix = lane / 8;
    TILEWISE_UNROLL
    for (int k = 0; k < Cols / 16; ++k) {
      TILEWISE_UNROLL
      for (int d = 0; d < Depth / 32; ++d) {
        uint32_t bytes[4];
        Machine::load_matrices_transposed(bytes, b.chunk(16 * k, 8 * (matrix % 2) + lane % 8, 2 * d, matrix / 2));
        TILEWISE_UNROLL
        for (int half = 0; half < 2; ++half) {
          uint32_t low[2], high[2];
          Machine::template unpack_e4m3<kElement>(low, Machine::swap_middle_bytes(bytes[2 * half]));
          Machine::template unpack_e4m3<kElement>(high, Machine::swap_middle_bytes(bytes[2 * half + 1]));
          TILEWISE_UNROLL
          for (int odd = 0; odd < 2; ++odd) {
            TILEWISE_UNROLL
            for (int r = 0; r < Rows / 16; ++r) {
              Machine::template mma<kElement>(to.tile[r][4 * d + 2 * half + odd], a.word[r][k], low[odd], high[odd]);
            }
          }
        }
      }
    }
  }

  /// Adjacent columns to adjacent registers, as Fragment::column() has them.
  template <int Rows, int Depth>
  TILEWISE_INLINE static void join_columns(Fragment<Sm80Ops, Rows, Depth, true>& of) {
    TILEWISE_UNROLL
    for (int r = 0; r < Rows / 16; ++r) {
      TILEWISE_UNROLL
      for (int c = 0; c < Depth / 8; c += 2) {
        Sm80Accumulator &even = of.tile[r][c], &odd = of.tile[r][c + 1];
        const Sm80Accumulator first{{even[0], odd[0], even[2], odd[2]}}, second{{even[1], odd[1], even[3], odd[3]}};
        even = first, odd = second;
      }
    }
  }

  /// to += A^T B: rows of both tiles meet, and A's columns from first_col on are rows of `to`.
  template <int Rows, int Depth, class Tile, bool kTight, class B, int kParts>
  TILEWISE_INLINE static void mma_AtB(Fragment<Sm80Ops, Rows, Depth>& to, const TilePart<Tile, kTight>& a, const B& b,
                                      ColumnPart<kParts> part) {
    const int lane = Machine::lane(), matrix = lane / 8;
    TILEWISE_UNROLL
    for (int k = 0; k < Tile::kRows / 16; ++k) {
      uint32_t left[Rows / 16][4];
      TILEWISE_UNROLL
      for (int r = 0; r < Rows / 16; ++r) {
        Machine::load_matrices_transposed(
            left[r], a.tile.chunk(16 * k, 8 * (matrix / 2) + lane % 8, 2 * r, a.first_col / kChunk + matrix % 2));
      }
      mma_AB_step<Tile::kElement>(to, [&](int r) -> const uint32_t (&)[4] { return left[r]; }, b, 0, k, part);
    }
  }

 private:
  template <class Tile, bool kTight>
  TILEWISE_INLINE static void load_left_part(uint32_t (&to)[4], const TilePart<Tile, kTight>& from, int r, int k) {
    load_left(to, from.tile, from.first_row, 0, r, k);
  }
  template <class Tile>
  TILEWISE_INLINE static void load_left_part(uint32_t (&to)[4], const TransposedPart<Tile>& from, int r, int k) {
    const int lane = Machine::lane(), matrix = lane / 8;
    Machine::load_matrices_transposed(
        to, from.tile.chunk(16 * k, 8 * (matrix / 2) + lane % 8, 2 * r, from.first_col / kChunk + matrix % 2));
  }
  template <class Tile, bool kTight>
  TILEWISE_INLINE static void load_right_part(uint32_t (&to)[4], const TilePart<Tile, kTight>& from, int c, int k) {
    const int lane = Machine::lane(), matrix = lane / 8;
    Machine::load_matrices(to,
                           from.tile.chunk(16 * c, from.first_row + 8 * (matrix / 2) + lane % 8, 2 * k, matrix % 2));
  }
  template <class Tile>
  TILEWISE_INLINE static void load_right_part(uint32_t (&to)[4], const TransposedPart<Tile>& from, int c, int k) {
    const int lane = Machine::lane(), matrix = lane / 8;
    Machine::load_matrices_transposed(
        to, from.tile.chunk(16 * k, 8 * (matrix % 2) + lane % 8, 2 * c, from.first_col / kChunk + matrix / 2));
  }

  template <class Tile>
  TILEWISE_INLINE static void load_left(uint32_t (&to)[4], const Tile& tile, int first_row, int first_col, int r,
                                        int k) {
    const int lane = Machine::lane(), matrix = lane / 8;
    Machine::load_matrices(
        to, tile.chunk(16 * r, first_row + 8 * (matrix % 2) + lane % 8, 2 * k, first_col / kChunk + matrix / 2));
  }

  /// For products with a ByteTile.
  template <class Tile, bool kTight>
  TILEWISE_INLINE static void load_left_by_fours(uint32_t (&to)[4], const TilePart<Tile, kTight>& from, int r, int k) {
    const int lane = Machine::lane();
    TILEWISE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const auto* const chunk = from.tile.chunk(16 * r + 8 * i, from.first_row + lane / 4, 2 * k, lane % 4 / 2);
      // Words apart: pairs would leave in registers that are no pairs of the product's.
      to[i] = Machine::template load_shared<uint32_t>(chunk + 4 * (lane % 2));
      to[2 + i] = Machine::template load_shared<uint32_t>(chunk + 4 * (lane % 2) + 2);
    }
  }

  /// One step of 16 along the products' sum, here and below.
  template <int kElement, int Rows, int Cols, class Tile>
  TILEWISE_INLINE static void mma_ABt_step(Fragment<Sm80Ops, Rows, Cols>& to, const uint32_t (&left)[Rows / 16][4],
                                           const Tile& tile, int k, int first_row) {
    const int lane = Machine::lane(), matrix = lane / 8;
    TILEWISE_UNROLL
    for (int c = 0; c < Cols / 16; ++c) {
      uint32_t right[4];
      Machine::load_matrices(right, tile.chunk(16 * c, first_row + 8 * (matrix / 2) + lane % 8, 2 * k, matrix % 2));
      TILEWISE_UNROLL
      for (int r = 0; r < Rows / 16; ++r) {
        Machine::template mma<kElement>(to.tile[r][2 * c], left[r], right[0], right[1]);
        Machine::template mma<kElement>(to.tile[r][2 * c + 1], left[r], right[2], right[3]);
      }
    }
  }

  /// left(r): the operand of row tile r, here and below.
  template <int kElement, int Rows, int Cols, class Left, int Depth>
  TILEWISE_INLINE static void mma_ABt_step(Fragment<Sm80Ops, Rows, Cols>& to, const Left& left,
                                           const ByteTile<kElement, Cols, Depth>& tile, int k) {
    TILEWISE_UNROLL
    for (int c = 0; c < Cols / 32; ++c) {
      uint32_t bytes[4];
      Machine::load_matrices(bytes, tile.chunk(32 * c, Machine::lane(), k, 0));
      TILEWISE_UNROLL
      for (int i = 0; i < 4; ++i) {
        uint32_t right[2];
        Machine::template unpack_e4m3<kElement>(right, bytes[i]);
        TILEWISE_UNROLL
        for (int r = 0; r < Rows / 16; ++r) {
          Machine::template mma<kElement>(to.tile[r][4 * c + i], left(r), right[0], right[1]);
        }
      }
    }
  }

  template <int kElement, int Rows, int Depth, class Left, class Tile, int kParts>
  TILEWISE_INLINE static void mma_AB_step(Fragment<Sm80Ops, Rows, Depth>& to, const Left& left, const Tile& tile,
                                          int first_row, int k, ColumnPart<kParts> part) {
    const int lane = Machine::lane(), matrix = lane / 8;
    TILEWISE_UNROLL
    for (int d = 0; d < Depth / 16; ++d) {
      uint32_t right[4];
      Machine::load_matrices_transposed(right, tile.chunk(16 * k, first_row + 8 * (matrix % 2) + lane % 8,
                                                          2 * kParts * d, 2 * part.index + matrix / 2));
      TILEWISE_UNROLL
      for (int r = 0; r < Rows / 16; ++r) {
        Machine::template mma<kElement>(to.tile[r][2 * d], left(r), right[0], right[1]);
        Machine::template mma<kElement>(to.tile[r][2 * d + 1], left(r), right[2], right[3]);
      }
    }
  }
};

}  // namespace tilewise::device
