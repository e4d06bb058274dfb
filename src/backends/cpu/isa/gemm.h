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

/// Adds the products of a whole depth to kRows x kVectors accumulators held in registers.
template <class C, int kRows, int kVectors>
TILEWISE_INLINE void accumulate_tile(typename C::V::F (&acc)[kRows][kVectors], const RealOf<C>* a, int64_t lda,
                                     const RealOf<C>* b, int64_t depth) {
  using V = typename C::V;
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
}

template <class C, int kRows, int kVectors>
void multiply_tile(const RealOf<C>* a, int64_t lda, const RealOf<C>* b, RealOf<C>* c, int64_t ldc, int64_t depth,
                   bool accumulate) {
  using V = typename C::V;
  typename V::F acc[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) acc[r][v] = accumulate ? V::load(c + r * ldc + v * V::kLanes) : V::zero();
  accumulate_tile<C>(acc, a, lda, b, depth);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) V::store(c + r * ldc + v * V::kLanes, acc[r][v]);
}

/// visit.operator()<rows of a tile>(its first row) for all rows.
template <class C, class Visit>
TILEWISE_INLINE void visit_tiles(int64_t rows, Visit&& visit) {
  constexpr int kRows = C::V::kTileRows;
  static_assert(kRows == 6 || kRows == 4);
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows) visit.template operator()<kRows>(r);
  switch (rows - r) {
    case 5:
      return visit.template operator()<5>(r);
    case 4:
      return visit.template operator()<4>(r);
    case 3:
      return visit.template operator()<3>(r);
    case 2:
      return visit.template operator()<2>(r);
    case 1:
      return visit.template operator()<1>(r);
    default:
      return;
  }
}

template <class C, int kVectors>
void multiply_panel(int64_t rows, const RealOf<C>* a, int64_t lda, const RealOf<C>* b, RealOf<C>* c, int64_t ldc,
                    int64_t depth, bool accumulate) {
  visit_tiles<C>(rows, [&]<int kRows>(int64_t r) {
    multiply_tile<C, kRows, kVectors>(a + r * lda, lda, b, c + r * ldc, ldc, depth, accumulate);
  });
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
