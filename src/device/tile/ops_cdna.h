// Tile operations on MFMA 32x32 (AMD CDNA): products come transposed, B's rows as the instruction's rows, so
// that a lane holds one row of A, and its registers, packed, are the next product's right operand.
#pragma once

#include "device/tile/byte_numbers.h"
#include "device/tile/byte_tile.h"
#include "device/tile/fragment.h"
#include "device/tile/operand_tiles.h"
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

  /// The same of bytes.
  template <int Rows, int Cols, int Own, int Depth, bool kTight, class Tile>
  TILEWISE_INLINE static void mma_ABt(Fragment<CdnaOps, Rows, Cols>& to,
                                      const TilePart<ByteRows<Own, Depth>, kTight>& a, const Tile& b) {
    static_assert(Depth % 64 == 0);
    const auto right = part_of(b);
    TILEWISE_UNROLL
    for (int k = 0; k < Depth / 64; ++k) {
      CdnaBytes own[Rows / 32];
      TILEWISE_UNROLL
      for (int r = 0; r < Rows / 32; ++r) own[r] = read_bytes(a.tile, a.first_row + 32 * r, k);
      TILEWISE_UNROLL
      for (int c = 0; c < Cols / 32; ++c) {
        const CdnaBytes other = read_bytes(right.tile, right.first_row + 32 * c, k);
        TILEWISE_UNROLL
        for (int r = 0; r < Rows / 32; ++r) multiply_bytes(to.tile[r][c], other, own[r], [](int) {});
      }
    }
  }

  /// The same of bytes, and of fours of B where kFours, times powers of two: own(r, k) and other(c, k) are this lane's,
  /// of row lane % 32 of a tile and of half lane / 32 of the 64 steps from 64 k on.
  template <bool kFours, int Rows, int Cols, int Own, int Depth, bool kTight, class Tile, class OwnScale, class Scale>
  TILEWISE_INLINE static void mma_scaled(Fragment<CdnaOps, Rows, Cols>& to,
                                         const TilePart<ByteRows<Own, Depth>, kTight>& a, const Tile& b,
                                         const OwnScale& own_scale, const Scale& other_scale) {
    static_assert(Depth % 64 == 0);
    const auto right = part_of(b);
    TILEWISE_UNROLL
    for (int k = 0; k < Depth / 64; ++k) {
      CdnaBytes own[Rows / 32];
      TILEWISE_UNROLL
      for (int r = 0; r < Rows / 32; ++r) own[r] = read_bytes(a.tile, a.first_row + 32 * r, k);
      TILEWISE_UNROLL
      for (int c = 0; c < Cols / 32; ++c) {
        CdnaBytes other{};
        if constexpr (kFours) {
          other.half[0] = read_fours(right.tile, right.first_row + 32 * c, k);
        } else {
          other = read_bytes(right.tile, right.first_row + 32 * c, k);
        }
        TILEWISE_UNROLL
        for (int r = 0; r < Rows / 32; ++r)
          Machine::template mma_scaled<kFours>(to.tile[r][c], other, other_scale(c, k), own[r], own_scale(r, k));
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

  /// Tiles of streamed rows in registers, as they lie in memory: for mma_ABt() and for mma_AB().
  template <int kFrom, int kTo, int Rows, int Depth>
  using HeldRows = RowsInRegisters<Machine, kFrom, kTo, Rows, Depth>;
  template <int kFrom, int kTo, int Rows, int Depth>
  using HeldColumns = ColumnsInRegisters<Machine, kFrom, kTo, Rows, Depth>;

  /// to += A B^T, both held in registers.
  template <int kElement, int kFrom, int Rows, int Cols, int Depth>
  TILEWISE_INLINE static void mma_ABt(Fragment<CdnaOps, Rows, Cols>& to, const Operand<kElement, Rows, Depth>& a,
                                      const RowsInRegisters<Machine, kFrom, kElement, Cols, Depth>& b) {
    TILEWISE_UNROLL
    for (int k = 0; k < Depth / 16; ++k) {
      TILEWISE_UNROLL
      for (int c = 0; c < Cols / 32; ++c) multiply_rows(to, c, b.step(c, k), a, k);
    }
  }
  template <int kElement, int kFrom, int Rows, int Cols, int Depth>
  TILEWISE_INLINE static void mma_AB(Fragment<CdnaOps, Rows, Depth>& to, const Operand<kElement, Rows, Cols>& a,
                                     const ColumnsInRegisters<Machine, kFrom, kElement, Cols, Depth>& b) {
    using Tile = HeldColumns<kFrom, kElement, Cols, Depth>;
    TILEWISE_UNROLL
    for (int k = 0; k < Cols / 16; ++k) {
      TILEWISE_UNROLL
      for (int g = 0; g < Tile::kGroups; ++g) {
        CdnaOperand right[Tile::kRun];
        b.step(right, k, g);
        TILEWISE_UNROLL
        for (int t = 0; t < Tile::kRun; ++t) multiply_rows(to, g * Tile::kRun + t, right[t], a, k);
      }
    }
  }

  /// Bytes as products take them, 64 deep, of which a lane has two stretches of 16.
  using Bytes = CdnaBytes;
  using HalfBytes = CdnaOperand;

  /// Bytes [64 k, 64 k + 64) of 32 rows of a tile.
  template <class Tile>
  TILEWISE_INLINE static Bytes read_bytes(const Tile& tile, int first_row, int k) {
    const int lane = Machine::lane();
    Bytes to;
    TILEWISE_UNROLL
    for (int i = 0; i < 2; ++i)
      to.half[i] = Machine::template load_shared<HalfBytes>(tile.chunk(first_row, lane % 32, 4 * k + 2 * i, lane / 32));
    return to;
  }

  /// Fours [64 k, 64 k + 64) of 32 rows, of which a lane has a stretch of 32.
  template <class Tile>
  TILEWISE_INLINE static HalfBytes read_fours(const Tile& tile, int first_row, int k) {
    const int lane = Machine::lane();
    return Machine::template load_shared<HalfBytes>(tile.chunk(first_row, lane % 32, 2 * k, lane / 32));
  }

  /// Of 32 rows of a tile 16 steps of the depth: the lower half of the lanes has chunk `chunk`, the upper one that
  /// `further` chunks on, which are both of the same 8.
  template <class Tile>
  TILEWISE_INLINE static HalfBytes read_halves(const Tile& tile, int first_row, int chunk, int further) {
    const int lane = Machine::lane();
    return Machine::template load_shared<HalfBytes>(tile.chunk(first_row, lane % 32, chunk, lane / 32 * further));
  }
  /// d += a b^T of 32 rows each, 16 deep.
  template <int kElement>
  TILEWISE_INLINE static void multiply_step(Accumulator& d, const HalfBytes& b, const HalfBytes& a) {
    Machine::template mma_32x32x16<kElement>(d, b, a);
  }

  /// d += a b^T. beside(i) is called after each of its Machine::kByteProducts instructions.
  template <class Beside>
  TILEWISE_INLINE static void multiply_bytes(Accumulator& d, const Bytes& a, const Bytes& b, const Beside& beside) {
    for_each_index<0, Machine::kByteProducts>([&](auto part) {
      Machine::template mma_bytes<decltype(part)::value>(d, a, b);
      beside(decltype(part)::value);
    });
  }

  /// Adds NaN to the sums of rows in which a lane has met one, a's or b's.
  TILEWISE_INLINE static void poison(Accumulator& d, const ByteNans& a, const ByteNans& b) {
    const auto bytes = [](const ByteNans& nans) {
      constexpr uint32_t kNans = 0x80808080u;  // as the machine has them, and a mark's bits
      Bytes to{};
      TILEWISE_UNROLL
      for (int i = 0; i < 4; ++i) to.half[0][i] = (nans.value & kNans) != 0 ? kNans : 0u;
      return to;
    };
    Machine::template mma_bytes<0>(d, bytes(a), bytes(b));
  }

  /// Operands that are read so many steps before they are multiplied. A step multiplies 32 rows of a tile, 16 deep.
  template <int kSteps_>
  struct StepsAhead {
    static constexpr int kSteps = kSteps_;
    CdnaOperand step[kSteps];
  };
  static constexpr int kStepsAhead = Machine::kStepsAhead;  // that hide how long reads of shared memory take
  static constexpr int kFewestAhead = Machine::kFewestAhead;

  /// Reads the first steps of stream_ABt().
  template <int kAhead, class Tile>
  TILEWISE_INLINE static void read_ahead(StepsAhead<kAhead>& to, const Tile& b) {
    TILEWISE_UNROLL
    for (int i = 0; i < kAhead; ++i) to.step[i] = read_tall(b, i);
  }

  /// mma_ABt() as a stream whose instructions keep their order, after read_ahead(): beside(step, steps) is called after
  /// each step's products, while the matrix unit is at work.
  template <int kElement, int Rows, int Cols, int Depth, class Tile, int kAhead, class Beside>
  TILEWISE_INLINE static void stream_ABt(Fragment<CdnaOps, Rows, Cols>& to, const Operand<kElement, Rows, Depth>& a,
                                         const Tile& b, StepsAhead<kAhead>& ahead, const Beside& beside) {
    constexpr int kCols = Cols / 32;
    stream<Depth / 16 * kCols>(
        ahead, [&](int i) { return read_tall(b, i); },
        [&](int i, const CdnaOperand& right) { multiply_rows(to, i % kCols, right, a, i / kCols); }, beside);
  }

  /// mma_AB() likewise.
  template <int kElement, int Rows, int Cols, int Depth, class Tile, int kAhead, class Beside>
  TILEWISE_INLINE static void stream_AB(Fragment<CdnaOps, Rows, Depth>& to, const Operand<kElement, Rows, Cols>& a,
                                        const Tile& b, StepsAhead<kAhead>& ahead, const Beside& beside) {
    constexpr int kDepth = Depth / 32;
    stream<Cols / 16 * kDepth>(
        ahead, [&](int i) { return read_tall(b, i); },
        [&](int i, const CdnaOperand& right) { multiply_rows(to, i % kDepth, right, a, i / kDepth); }, beside);
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
  template <int kSteps, int kAhead, class Read, class Multiply, class Beside>
  TILEWISE_INLINE static void stream(StepsAhead<kAhead>& ahead, const Read& read, const Multiply& multiply,
                                     const Beside& beside) {
    static_assert(kAhead <= kSteps);
    TILEWISE_UNROLL
    for (int i = 0; i < kSteps; ++i) {
      keep_order<Machine>();
      multiply(i, ahead.step[i % kAhead]);
      if (i + kAhead < kSteps) ahead.step[i % kAhead] = read(i + kAhead);
      beside(i, kSteps);
    }
    keep_order<Machine>();
  }

  /// One column tile of `to`, of every row tile.
  template <int kElement, int Rows, int Cols, int Depth>
  TILEWISE_INLINE static void multiply_rows(Fragment<CdnaOps, Rows, Cols>& to, int col_tile, const CdnaOperand& right,
                                            const Operand<kElement, Rows, Depth>& a, int k) {
    TILEWISE_UNROLL
    for (int r = 0; r < Rows / 32; ++r) {
      Machine::template mma_32x32x16<kElement>(to.tile[r][col_tile], right, a.step[r][k]);
    }
  }

  /// The same of a tile in rows, whose columns are meant. Of the 16 rows of a step a lane has those that to_operand()
  /// leaves it: four, and four that stand 8 further.
  template <int kElement, int Rows, int Depth>
  TILEWISE_INLINE static CdnaOperand read_tall(const ColumnsOfRows<kElement, Rows, Depth>& tile, int i) {
    constexpr int kColTiles = Depth / 32;
    const int lane = Machine::lane(), row = 4 * (lane / 32) + lane % 16 / 4;
    const int col = 16 * (lane / 16 % 2) + 4 * (lane % 4), first_row = 16 * (i / kColTiles);
    struct Halves {
      HalfChunk low, high;
    };
    const auto read = [&](int base_row) {
      const auto* chunk = tile.rows.chunk(base_row, row, 4 * (i % kColTiles), col / kChunk);
      return Machine::read_transposed(chunk + col % kChunk);
    };
    return __builtin_bit_cast(CdnaOperand, (Halves{read(first_row), read(first_row + 8)}));
  }

  /// Step i over a whole tile: its rows, 32 at a time, run faster than its depth.
  template <class Tile>
  TILEWISE_INLINE static CdnaOperand read_tall(const Tile& tile, int i) {
    constexpr int kRowTiles = Tile::kRows / 32;
    return read_step(tile, 32 * (i % kRowTiles), i / kRowTiles);
  }

  template <class Tile>
  TILEWISE_INLINE static CdnaOperand read_step(const Tile& tile, int first_row, int k) {
    const int lane = Machine::lane();
    return Machine::template load_shared<CdnaOperand>(tile.chunk(first_row, lane % 32, 2 * k, lane / 32));
  }
};

}  // namespace tilewise::device
