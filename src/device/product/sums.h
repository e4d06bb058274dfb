// What a wave holds of a block's sums: accumulators of matrix instructions, or floats that its lanes add up.
#pragma once

#include "device/product/operand.h"
#include "device/tile/mma.h"

namespace tilewise::device {

/// Of matrix instructions, rows and columns of the block from first_row and first_col on.
template <class Ops, ProductConfig C>
class MatrixSums {
  using Machine = typename Ops::Machine;
  using Tile = Fragment<Ops, C.wave_rows(), C.wave_columns()>;

 public:
  /// Adjacent columns that are visited at once.
  static constexpr int kRun = kAdjacentColumns<typename Ops::FragmentLayout>;
  /// Rows of the wave that a lane holds parts of.
  static constexpr int kSlots = Tile::kSlots;

  TILEWISE_INLINE explicit MatrixSums(int wave)
      : first_row_(wave / C.waves_n * C.wave_rows()), first_col_(wave % C.waves_n * C.wave_columns()) {}

  TILEWISE_INLINE void clear() { tile_.clear(); }

  template <class A, class B>
  TILEWISE_INLINE void multiply(const A& a, const B& b) {
    if constexpr (A::kColumns || B::kColumns) {
      Ops::template mma_parts<C.block_k>(tile_, rows_of(a, first_row_), rows_of(b, first_col_));
    } else {
      mma_ABt(tile_, rows_of(a, first_row_), rows_of(b, first_col_));
    }
  }

  /// The same of bytes with scales of the wave's rows and columns, as the matrix unit takes them.
  template <class A, class B, class Scales>
  TILEWISE_INLINE void multiply_scaled(const A& a, const B& b, const Scales& scales) {
    Ops::template mma_scaled<C.b.type == kProductE2m1>(tile_, rows_of(a, first_row_), rows_of(b, first_col_), scales.a,
                                                       scales.b);
  }

  /// The same, b held in registers: the wave's own rows of it.
  template <class A, class Operand>
  TILEWISE_INLINE void multiply_held(const A& a, const Operand& b) {
    mma_ABt(tile_, part_of(a, first_row_), b);
  }
  TILEWISE_INLINE int first_row() const { return first_row_; }
  TILEWISE_INLINE int first_col() const { return first_col_; }
  TILEWISE_INLINE Tile& tile() { return tile_; }

  /// Adds NaN where rows of bytes had one: own(row of the block), other(tile of 32 columns of the wave).
  template <class Own, class Other>
  TILEWISE_INLINE void poison(const Own& own, const Other& other) {
    TILEWISE_UNROLL
    for (int r = 0; r < Tile::kRowTiles; ++r) {
      const ByteNans row = own(row_of_slot(r));
      TILEWISE_UNROLL
      for (int c = 0; c < Tile::kColTiles; ++c) {
        const ByteNans column = other(c);
        if (Machine::any(((row.value | column.value) & 0x80808080u) != 0)) Ops::poison(tile_.tile[r][c], column, row);
      }
    }
  }

  TILEWISE_INLINE void multiply_by(float factor) {
    if (factor == 1.0f) return;
    tile_.for_each(Machine::lane(), [&](int, int, auto&& x) { x = x * factor; });
  }

  /// Row of the block behind a slot of this lane.
  TILEWISE_INLINE int row_of_slot(int slot) const { return first_row_ + Tile::row_of_slot(Machine::lane(), slot); }

  /// Adds sums times row_factor[slot] and column_factor(column of the block).
  template <class ColumnFactor>
  TILEWISE_INLINE void add_scaled(MatrixSums& other, const RowValues<kSlots>& row_factor,
                                  const ColumnFactor& column_factor) {
    tile_.for_each_pair(other.tile_, Machine::lane(), [&](int slot, int col, auto&& to, auto&& x) {
      to = fused_multiply_add(x, row_factor[slot] * column_factor(first_col_ + col), to);
    });
  }

  /// visit(row, first column, FloatRun<kRun>) for each run of adjacent columns of the block that this lane holds.
  template <class Visit>
  TILEWISE_INLINE void for_each_run(const Visit& visit) const {
    const int lane = Machine::lane();
    tile_.template for_each_run<kRun>(lane, [&](int slot, int col, const FloatRun<kRun>& run) {
      visit(first_row_ + Tile::row_of_slot(lane, slot), first_col_ + col, run);
    });
  }

  /// visit(row, first column of both, FloatRun<kRun>, FloatRun<kRun>) for each run of the left half of the wave's
  /// columns and the run as far right in the right half: of blocks whose halves of 2 * half() columns belong together.
  template <class Visit>
  TILEWISE_INLINE void for_each_run_of_halves(const Visit& visit) const {
    constexpr int kHalf = Tile::kColTiles / 2;
    using FragmentLayout = typename Ops::FragmentLayout;
    static_assert(Tile::kColTiles % 2 == 0, "halves are whole instructions");
    const int lane = Machine::lane();
    TILEWISE_UNROLL
    for (int r = 0; r < Tile::kRowTiles; ++r) {
      TILEWISE_UNROLL
      for (int c = 0; c < kHalf; ++c) {
        TILEWISE_UNROLL
        for (int i = 0; i < FragmentLayout::kRegisters; i += kRun) {
          FloatRun<kRun> left, right;
          TILEWISE_UNROLL
          for (int j = 0; j < kRun; ++j) {
            left.value[j] = tile_.tile[r][c][i + j];
            right.value[j] = tile_.tile[r][c + kHalf][i + j];
          }
          const int slot = r * FragmentLayout::kRowSlots + FragmentLayout::slot(i);
          visit(first_row_ + Tile::row_of_slot(lane, slot), first_col_ / 2 + Tile::column(lane, c, i), left, right);
        }
      }
    }
  }

 private:
  int first_row_, first_col_;
  Tile tile_;
};

/// Of floats: a lane has squares of 4 x 4, those of neighbours side by side.
template <class Ops, ProductConfig C>
class FloatSums {
  using Machine = typename Ops::Machine;
  static constexpr int kSide = 4, kLaneCols = 8, kLaneRows = Machine::kLanes / kLaneCols;
  static constexpr int kRowSquares = C.wave_rows() / (kSide * kLaneRows);
  static constexpr int kColSquares = C.wave_columns() / (kSide * kLaneCols);
  static_assert(kRowSquares * kSide * kLaneRows == C.wave_rows() &&
                kColSquares * kSide * kLaneCols == C.wave_columns());

 public:
  static constexpr int kRun = kSide;

  TILEWISE_INLINE explicit FloatSums(int wave)
      : first_row_(wave / C.waves_n * C.wave_rows()), first_col_(wave % C.waves_n * C.wave_columns()) {}

  TILEWISE_INLINE void clear() {
    TILEWISE_UNROLL
    for (int r = 0; r < kRowSquares * kSide; ++r) {
      TILEWISE_UNROLL
      for (int c = 0; c < kColSquares * kSide; ++c) sum_[r][c] = 0.0f;
    }
  }

  template <class A, class B>
  TILEWISE_INLINE void multiply(const A& a, const B& b) {
    // Not all at once: what is asked for ahead takes registers.
    constexpr int kAtOnce = 4;
    TILEWISE_NO_UNROLL
    for (int first = 0; first < C.block_k; first += kAtOnce) {
      TILEWISE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) multiply_step(a, b, first + i);
    }
  }

  template <class Visit>
  TILEWISE_INLINE void for_each_run(const Visit& visit) const {
    TILEWISE_UNROLL
    for (int r = 0; r < kRowSquares * kSide; ++r) {
      TILEWISE_UNROLL
      for (int c = 0; c < kColSquares; ++c) visit(row(r / kSide) + r % kSide, col(c), run_of(r, c));
    }
  }

  template <class Visit>
  TILEWISE_INLINE void for_each_run_of_halves(const Visit& visit) const {
    constexpr int kHalf = kColSquares / 2;
    static_assert(kColSquares % 2 == 0, "halves are whole squares");
    TILEWISE_UNROLL
    for (int r = 0; r < kRowSquares * kSide; ++r) {
      TILEWISE_UNROLL
      for (int c = 0; c < kHalf; ++c) {
        visit(row(r / kSide) + r % kSide, col(c) - first_col_ / 2, run_of(r, c), run_of(r, c + kHalf));
      }
    }
  }

 private:
  template <class A, class B>
  TILEWISE_INLINE void multiply_step(const A& a, const B& b, int k) {
    FloatRun<kSide> left[kRowSquares], right[kColSquares];
    TILEWISE_UNROLL
    for (int r = 0; r < kRowSquares; ++r) left[r] = Machine::template load_shared<FloatRun<kSide>>(a.at(row(r), k));
    TILEWISE_UNROLL
    for (int c = 0; c < kColSquares; ++c) right[c] = Machine::template load_shared<FloatRun<kSide>>(b.at(col(c), k));
    TILEWISE_UNROLL
    for (int r = 0; r < kRowSquares * kSide; ++r) {
      TILEWISE_UNROLL
      for (int c = 0; c < kColSquares * kSide; ++c) {
        sum_[r][c] =
            fused_multiply_add(left[r / kSide].value[r % kSide], right[c / kSide].value[c % kSide], sum_[r][c]);
      }
    }
  }

  TILEWISE_INLINE int row(int square) const {
    return first_row_ + (square * kLaneRows + Machine::lane() / kLaneCols) * kSide;
  }
  TILEWISE_INLINE int col(int square) const {
    return first_col_ + (square * kLaneCols + Machine::lane() % kLaneCols) * kSide;
  }
  TILEWISE_INLINE FloatRun<kSide> run_of(int r, int square) const {
    FloatRun<kSide> run;
    TILEWISE_UNROLL
    for (int i = 0; i < kSide; ++i) run.value[i] = sum_[r][square * kSide + i];
    return run;
  }

  int first_row_, first_col_;
  float sum_[kRowSquares * kSide][kColSquares * kSide];
};

template <class Ops, ProductConfig C>
using ProductSums = Choose<C.in_f32(), FloatSums<Ops, C>, MatrixSums<Ops, C>>;

}  // namespace tilewise::device
