// Sums of fp8 products in fp32: wgmma keeps about 14 bits of a sum of fp8 products, so that a long one is made of short
// ones, which ordinary arithmetic adds, each times its scale.
#pragma once

#include "device/tile/platform.h"

namespace tilewise::device {

/// sums += part, each row times its factor.
template <class Fragment>
TILEWISE_INLINE void promote(Fragment& sums, const Fragment& part, const typename Fragment::PerRow& factor) {
  TILEWISE_UNROLL
  for (int c = 0; c < Fragment::kColTiles; ++c) {
    TILEWISE_UNROLL
    for (int i = 0; i < 4; ++i) sums.tile[0][c][i] += part.tile[0][c][i] * factor[i / 2];
  }
}

/// The same of columns in turns of eight: the first ones times the first factor, the next times the second.
template <class Fragment>
TILEWISE_INLINE void promote_in_turn(Fragment& sums, const Fragment& part,
                                     const typename Fragment::PerRow (&factor)[2]) {
  TILEWISE_UNROLL
  for (int c = 0; c < Fragment::kColTiles; ++c) {
    TILEWISE_UNROLL
    for (int i = 0; i < 4; ++i) sums.tile[0][c][i] += part.tile[0][c][i] * factor[c % 2][i / 2];
  }
}

}  // namespace tilewise::device
