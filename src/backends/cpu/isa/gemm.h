// C (+)= A · B on small packed operands: the only matrix product of the CPU backend.
//
// Operands are counted in units: a Real (float or double), or a pair of bf16 adjacent along K.
// A is row-major [rows][depth]; B lies in panels of kPanel columns, [panel][depth][kPanel]; C is
// row-major Reals. Scores, outputs and all five products of the backward pass have this shape.
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/elements.h"

namespace tilewise::backends::cpu {

/// Columns of a packed panel.
template <class V>
inline constexpr int kPanel = V::kPanelVectors * V::kLanes;

/// What a Compute computes in.
template <class C>
using RealOf = typename C::V::Real;

/// kRows x kVectors accumulators held in registers over the whole depth.
template <class C, int kRows, int kVectors>
void multiply_tile(const RealOf<C>* a, int64_t lda, const RealOf<C>* b, RealOf<C>* c, int64_t ldc, int64_t depth,
                   bool accumulate) {
  using V = typename C::V;
  typename V::F acc[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) acc[r][v] = accumulate ? V::load(c + r * ldc + v * V::kLanes) : V::zero();
  for (int64_t d = 0; d < depth; ++d) {
    typename V::F columns[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) columns[v] = V::load(b + d * kPanel<V> + v * V::kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const typename V::F row = V::set1(a[r * lda + d]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) acc[r][v] = C::dot(acc[r][v], row, columns[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) V::store(c + r * ldc + v * V::kLanes, acc[r][v]);
}

template <class C, int kVectors>
void multiply_panel(int64_t rows, const RealOf<C>* a, int64_t lda, const RealOf<C>* b, RealOf<C>* c, int64_t ldc,
                    int64_t depth, bool accumulate) {
  constexpr int kRows = C::V::kTileRows;
  static_assert(kRows == 6 || kRows == 4);
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows)
    multiply_tile<C, kRows, kVectors>(a + r * lda, lda, b, c + r * ldc, ldc, depth, accumulate);
  a += r * lda;
  c += r * ldc;
  switch (rows - r) {
    case 5:
      return multiply_tile<C, 5, kVectors>(a, lda, b, c, ldc, depth, accumulate);
    case 4:
      return multiply_tile<C, 4, kVectors>(a, lda, b, c, ldc, depth, accumulate);
    case 3:
      return multiply_tile<C, 3, kVectors>(a, lda, b, c, ldc, depth, accumulate);
    case 2:
      return multiply_tile<C, 2, kVectors>(a, lda, b, c, ldc, depth, accumulate);
    case 1:
      return multiply_tile<C, 1, kVectors>(a, lda, b, c, ldc, depth, accumulate);
    default:
      return;
  }
}

/// `columns` is rounded up to whole vectors: C must have room for them. Panels are
/// `panel_stride` units apart and stay in the first-level cache while all rows pass.
template <class C>
void multiply(int64_t rows, int64_t columns, int64_t depth, const RealOf<C>* a, int64_t lda, const RealOf<C>* b,
              int64_t panel_stride, RealOf<C>* c, int64_t ldc, bool accumulate) {
  using V = typename C::V;
  for (int64_t column = 0; column < columns; column += kPanel<V>, b += panel_stride, c += kPanel<V>) {
    const int64_t vectors = (columns - column + V::kLanes - 1) / V::kLanes;
    if (vectors >= V::kPanelVectors) {
      multiply_panel<C, V::kPanelVectors>(rows, a, lda, b, c, ldc, depth, accumulate);
    } else if constexpr (V::kPanelVectors > 1) {
      if (vectors == 1) multiply_panel<C, 1>(rows, a, lda, b, c, ldc, depth, accumulate);
      if constexpr (V::kPanelVectors > 2) {
        if (vectors == 2) multiply_panel<C, 2>(rows, a, lda, b, c, ldc, depth, accumulate);
        if (vectors == 3) multiply_panel<C, 3>(rows, a, lda, b, c, ldc, depth, accumulate);
      }
    }
  }
}

}  // namespace tilewise::backends::cpu
