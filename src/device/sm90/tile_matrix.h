// A matrix of tiles, and the order in which a launch works on them.
#pragma once

#include "device/tile/platform.h"

namespace tilewise::device {

struct TilePlace {
  int32_t row, col;
};

/// A matrix of tiles in the order that they are worked on: panels of so many rows of tiles, each column by column, so
/// that what runs at a time shares rows and columns in L2.
struct TileMatrix {
  int32_t rows, cols, panel, unused;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("rows", p.rows), visit("cols", p.cols), visit("panel", p.panel), visit("unused", p.unused);
  }
  TILEWISE_INLINE constexpr int32_t count() const { return rows * cols; }
  TILEWISE_INLINE constexpr TilePlace place(int32_t number) const {
    const int32_t a_panel = panel * cols, above = number / a_panel * panel, rest = number % a_panel;
    const int32_t height = minimum(panel, rows - above), col = rest / height;
    return {above + rest - col * height, col};
  }
};

}  // namespace tilewise::device
