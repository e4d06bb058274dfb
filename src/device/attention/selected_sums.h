// dk and dv of selected keys: fp32 sums of each key's row in the workspace, which the blocks of all queries that select
// it add to in any order.
#pragma once

#include "device/tile/fragment.h"

namespace tilewise::device {

template <class Ops>
struct SelectedSums {
  using Machine = typename Ops::Machine;
  using FragmentLayout = typename Ops::FragmentLayout;
  /// Where a lane has two columns of a tile's row, those of two tiles are four floats side by side, which are added at
  /// once: 16 columns stand in the order of lanes.
  static constexpr bool kByFours = requires(float* to, const float (&four)[4]) { Machine::add_global(to, four); };
  static constexpr int kTile = 8;

  /// Where a column of a row stands.
  TILEWISE_INLINE static constexpr int place(int col) {
    if constexpr (!kByFours) return col;
    const int in_tile = col % kTile;
    return col / (2 * kTile) * (2 * kTile) + 4 * (in_tile / 2) + 2 * (col / kTile % 2) + in_tile % 2;
  }

  /// Adds a wave's sums to the rows that row(row of the fragment) says, where it is not null.
  template <class Sums, class Row>
  TILEWISE_INLINE static void add(Sums& sums, int lane, const Row& row) {
    float* to[Sums::kSlots];
    TILEWISE_UNROLL
    for (int slot = 0; slot < Sums::kSlots; ++slot) to[slot] = row(Sums::row_of_slot(lane, slot));
    if constexpr (kByFours) {
      static_assert(FragmentLayout::kCols == kTile && kAdjacentColumns<FragmentLayout> == 2 &&
                    Sums::kColTiles % 2 == 0);
      TILEWISE_UNROLL
      for (int r = 0; r < Sums::kRowTiles; ++r) {
        TILEWISE_UNROLL
        for (int c = 0; c < Sums::kColTiles; c += 2) {
          TILEWISE_UNROLL
          for (int i = 0; i < FragmentLayout::kRegisters; i += 2) {
            float* const of_row = to[r * FragmentLayout::kRowSlots + FragmentLayout::slot(i)];
            const auto &left = sums.tile[r][c], &right = sums.tile[r][c + 1];
            const float four[4] = {left[i], left[i + 1], right[i], right[i + 1]};
            if (of_row) Machine::add_global(of_row + place(Sums::column(lane, c, i)), four);
          }
        }
      }
    } else {
      sums.for_each(lane, [&](int slot, int col, auto&& x) {
        if (to[slot]) Machine::add_global(to[slot] + col, static_cast<float>(x));
      });
    }
  }
};

}  // namespace tilewise::device
