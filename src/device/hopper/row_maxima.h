// The greatest of the numbers that a lane holds of each of its rows.
#pragma once

#include "device/tile/fragment.h"

namespace tilewise::device {

/// Of one tile of rows, in two chains a row. As int32_t by the bits of floats, of which the greatest of three takes one
/// instruction where floats take two: that is right as far as it is above 0.
template <class Number, class Scores>
TILEWISE_INLINE RowValues<Scores::kSlots> row_maxima(const Scores& S) {
  using FragmentLayout = typename Scores::FragmentLayout;
  static_assert(Scores::kRowTiles == 1 && Scores::kColTiles % 2 == 0);
  const auto greater = [](Number a, Number b) TILEWISE_INLINE_LAMBDA {
    if constexpr (IsSame<Number, float>::value) {
      return higher(a, b);
    } else {
      return maximum(a, b);
    }
  };
  Number chains[2][Scores::kSlots];
  TILEWISE_UNROLL
  for (int c = 0; c < Scores::kColTiles; ++c) {
    TILEWISE_UNROLL
    for (int i = 0; i < FragmentLayout::kRegisters; ++i) {
      const int slot = FragmentLayout::slot(i);
      Number& chain = chains[c % 2][slot];
      const auto x = __builtin_bit_cast(Number, S.tile[0][c][i]);
      const bool begins = c < 2 && (i == 0 || FragmentLayout::slot(i - 1) != slot);
      chain = begins ? x : greater(chain, x);
    }
  }
  RowValues<Scores::kSlots> most;
  TILEWISE_UNROLL
  for (int slot = 0; slot < Scores::kSlots; ++slot) {
    most[slot] = __builtin_bit_cast(float, greater(chains[0][slot], chains[1][slot]));
  }
  return most;
}

}  // namespace tilewise::device
