// Fragments: products of Rows x Cols that a wave holds in accumulators, and one value a row beside them. Rows are
// always the wave's own side, columns the side that streams past, whatever the instruction.
#pragma once

#include "device/tile/fragment_layout.h"
#include "device/tile/platform.h"

namespace tilewise::device {

/// One float for each row a lane holds a part of.
template <int kSlots>
struct RowValues {
  float value[kSlots];
  TILEWISE_INLINE float& operator[](int slot) { return value[slot]; }
  TILEWISE_INLINE const float& operator[](int slot) const { return value[slot]; }
  TILEWISE_INLINE void fill(float x) {
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) value[slot] = x;
  }
};

/// Floats that move as one.
template <int kRun>
struct alignas(4 * kRun) FloatRun {
  float value[kRun];
};

/// Adjacent columns that adjacent registers of a lane hold.
template <class FragmentLayout>
inline constexpr int kAdjacentColumns = FragmentLayout::place(0, 3).col == FragmentLayout::place(0, 0).col + 3   ? 4
                                        : FragmentLayout::place(0, 1).col == FragmentLayout::place(0, 0).col + 1 ? 2
                                                                                                                 : 1;

struct NoPair {};
template <class Accumulator>
struct PairOf {
  using Type = NoPair;
};
template <class Accumulator>
  requires requires { typename Accumulator::Pair; }
struct PairOf<Accumulator> {
  using Type = typename Accumulator::Pair;
};

/// The columns of a wave where kParts (a power of 2) waves share rows: units of 16, assigned in turn.
template <int kParts>
struct ColumnPart {
  int index;
  /// Column of the whole that column `col` of the part is; 16 divides their distances.
  TILEWISE_INLINE constexpr int whole(int col) const { return (col / 16 * kParts + index) * 16 + col % 16; }
};
template <>
struct ColumnPart<1> {
  int index;
  TILEWISE_INLINE static constexpr int whole(int col) { return col; }
};

/// Rows x Cols floats, whole accumulators of the matrix instructions that Ops_ names. kByFours: of 16 columns a lane
/// holds 4 adjacent ones of two accumulators, not 2 and 2 (products with a ByteTile, on machines of such accumulators).
template <class Ops_, int Rows, int Cols, bool kByFours = false>
struct Fragment {
  using Ops = Ops_;
  using FragmentLayout = typename Ops::FragmentLayout;
  using Accumulator = typename Ops::Accumulator;
  static constexpr int kRows = Rows, kCols = Cols;
  static constexpr bool kJoinsColumns = kByFours;  // by Ops::join_columns(), once products have been added up
  static_assert(Rows % FragmentLayout::kRows == 0 && Cols % FragmentLayout::kCols == 0,
                "a fragment is whole instructions");
  static constexpr int kRowTiles = Rows / FragmentLayout::kRows, kColTiles = Cols / FragmentLayout::kCols;
  static constexpr int kSlots = kRowTiles * FragmentLayout::kRowSlots;
  using PerRow = RowValues<kSlots>;
  /// Whether the machine computes with two adjacent registers at once, and the type of such.
  using Pair = typename PairOf<Accumulator>::Type;
  static constexpr bool kPacked = !IsSame<Pair, NoPair>::value;

  Accumulator tile[kRowTiles][kColTiles];

  TILEWISE_INLINE void clear() {
    for_each(0, [](int, int, auto&& x) { x = 0.0f; });
  }

  /// Row of the fragment behind a slot of this lane.
  TILEWISE_INLINE static int row_of_slot(int lane, int slot) {
    const int within = slot % FragmentLayout::kRowSlots;
    int first = 0;  // the first register of the slot
    TILEWISE_UNROLL
    for (int i = FragmentLayout::kRegisters - 1; i >= 0; --i) first = FragmentLayout::slot(i) == within ? i : first;
    return slot / FragmentLayout::kRowSlots * FragmentLayout::kRows + FragmentLayout::place(lane, first).row;
  }

  /// Column of register i of an accumulator of a lane.
  TILEWISE_INLINE static constexpr int column(int lane, int c, int i) {
    const int col = FragmentLayout::place(lane, i).col;
    if constexpr (!kByFours) return c * FragmentLayout::kCols + col;
    return c / 2 * 16 + 2 * (col - col % 2) + 2 * (c % 2) + col % 2;
  }

  /// The lane's pairs of adjacent registers, by number, and the column of the first one of a pair; where kPacked.
  static constexpr int kPairs = kRowTiles * kColTiles * FragmentLayout::kRegisters / 2;
  TILEWISE_INLINE Pair& pair(int i) {
    constexpr int kEach = FragmentLayout::kRegisters / 2;
    return tile[i / kEach / kColTiles][i / kEach % kColTiles].pair(i % kEach * 2);
  }
  TILEWISE_INLINE static constexpr int column_of_pair(int lane, int i) {
    constexpr int kEach = FragmentLayout::kRegisters / 2;
    return column(lane, i / kEach % kColTiles, i % kEach * 2);
  }

  /// visit(accumulator&) for each of them.
  template <class Visit>
  TILEWISE_INLINE void for_each_tile(const Visit& visit) {
    TILEWISE_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      TILEWISE_UNROLL
      for (int c = 0; c < kColTiles; ++c) visit(tile[r][c]);
    }
  }

  /// visit(slot, column, value&) for each element this lane holds.
  template <class Visit>
  TILEWISE_INLINE void for_each(int lane, const Visit& visit) {
    walk<1>(lane, [&](int r, int c, int i, int slot, int col) { visit(slot, col, tile[r][c][i]); });
  }

  /// visit(slot, column, value&, other&) for each element of two fragments of one shape.
  template <class Visit>
  TILEWISE_INLINE void for_each_pair(Fragment& other, int lane, const Visit& visit) {
    walk<1>(lane,
            [&](int r, int c, int i, int slot, int col) { visit(slot, col, tile[r][c][i], other.tile[r][c][i]); });
  }

  /// visit(slot, first column, FloatRun<kRun>) for each run of adjacent registers.
  template <int kRun, class Visit>
  TILEWISE_INLINE void for_each_run(int lane, const Visit& visit) const {
    walk<kRun>(lane, [&](int r, int c, int i, int slot, int col) {
      FloatRun<kRun> run;
      TILEWISE_UNROLL
      for (int j = 0; j < kRun; ++j) run.value[j] = tile[r][c][i + j];
      visit(slot, col, run);
    });
  }

  /// visit(slot, pair&) for each pair of adjacent registers; where kPacked.
  template <class Visit>
  TILEWISE_INLINE void for_each_packed(const Visit& visit) {
    walk<2>(0, [&](int r, int c, int i, int slot, int) { visit(slot, tile[r][c].pair(i)); });
  }

  /// visit(slot, column, pair&, other&) for each pair of adjacent registers of two fragments of one shape;
  /// the column is the first one's. Where kPacked.
  template <class Visit>
  TILEWISE_INLINE void for_each_packed(Fragment& other, int lane, const Visit& visit) {
    walk<2>(lane, [&](int r, int c, int i, int slot, int col) {
      visit(slot, col, tile[r][c].pair(i), other.tile[r][c].pair(i));
    });
  }

  /// Multiplies each row by its factor; a factor of 0 clears it, whatever it held.
  TILEWISE_INLINE void scale_or_clear_rows(const PerRow& factor) {
    for_each(0, [&](int slot, int, auto&& x) { x = factor[slot] == 0.0f ? 0.0f : x * factor[slot]; });
  }

  /// Multiplies the rows where used(row of the fragment) by `scale`, which may be 0 and leaves a NaN one, and clears
  /// the others, whatever they held.
  template <class Used>
  TILEWISE_INLINE void scale_used_rows(int lane, float scale, const Used& used) {
    bool is_used[kSlots];
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) is_used[slot] = used(row_of_slot(lane, slot));
    for_each(0, [&](int slot, int, auto&& x) { x = is_used[slot] ? x * scale : 0.0f; });
  }

  /// Multiplies each row by its factor.
  TILEWISE_INLINE void scale_rows(const PerRow& factor) {
    for_each(0, [&](int slot, int, auto&& x) { x = x * factor[slot]; });
  }

 private:
  /// visit(row tile, column tile, register, slot, column) for every kStep-th register.
  template <int kStep, class Visit>
  TILEWISE_INLINE static void walk(int lane, const Visit& visit) {
    TILEWISE_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      TILEWISE_UNROLL
      for (int c = 0; c < kColTiles; ++c) {
        TILEWISE_UNROLL
        for (int i = 0; i < FragmentLayout::kRegisters; i += kStep) {
          visit(r, c, i, r * FragmentLayout::kRowSlots + FragmentLayout::slot(i), column(lane, c, i));
        }
      }
    }
  }
};

/// Combines the parts of each row that different lanes hold.
template <class Machine, class FragmentLayout, int kSlots, class Combine>
TILEWISE_INLINE void reduce_rows(RowValues<kSlots>& values, const Combine& combine) {
  TILEWISE_UNROLL
  for (int bit = 1; bit < FragmentLayout::kLanes; bit *= 2) {
    if ((FragmentLayout::kRowMask & bit) == 0) continue;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      values[slot] = combine(values[slot], Machine::shuffle_xor(values[slot], bit));
    }
  }
}

}  // namespace tilewise::device
