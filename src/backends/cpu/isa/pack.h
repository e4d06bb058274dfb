// From the caller's rows to the operands of multiply(): conversion to the compute type,
// transposition or pairing, zeros in every padding.
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/gemm.h"

namespace tilewise::backends::cpu {

TILEWISE_INLINE constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// The last units of a row, `count` elements. Not inlined: it stands behind every load of 16 in a row. Static: types of
/// compute are shared by instruction sets, whose code is not.
template <class C, class In>
[[gnu::noinline]] static typename C::V::F load_last_units(const In* from, int64_t count) {
  alignas(64) In tail[int64_t{C::V::kLanes} * C::kPair] = {};
  for (int64_t i = 0; i < count; ++i) tail[i] = from[i];
  return C::load_units(tail);
}

/// One vector of units starting at element `begin` of a row of `size` elements, zeros beyond
/// its end. Never reads past the row.
template <class C, class In>
TILEWISE_INLINE typename C::V::F load_units(const In* row, int64_t begin, int64_t size) {
  constexpr int64_t kElements = int64_t{C::V::kLanes} * C::kPair;
  if (begin + kElements <= size) return C::load_units(row + begin);
  return load_last_units<C>(row + begin, size - begin);
}

/// Units along K for `size` elements, padding included.
template <class C>
TILEWISE_INLINE constexpr int64_t depth_units(int64_t size) {
  return round_up(size, int64_t{C::kPair} * C::kDepthUnits) / C::kPair;
}

/// A row as an A operand: out[depth_units(size) rounded up to whole vectors].
template <class C, class In>
void pack_row(const In* row, int64_t size, RealOf<C>* out) {
  using V = typename C::V;
  for (int64_t unit = 0; unit < depth_units<C>(size); unit += V::kLanes)
    V::store(out + unit, load_units<C>(row, unit * C::kPair, size));
}

/// Rows [0, count) of `size` elements as a B operand whose columns are the rows and whose depth
/// is the elements: [panel][depth_units(size)][kPanel]. Columns up to a whole panel are zeroed.
template <class C, class In>
void pack_transposed(const In* rows, int64_t stride, int64_t count, int64_t size, RealOf<C>* out) {
  using V = typename C::V;
  const int64_t depth = depth_units<C>(size);
  for (int64_t column = 0; column < round_up(count, kPanel<V>); column += V::kLanes) {
    RealOf<C>* panel = out + column / kPanel<V> * depth * kPanel<V> + column % kPanel<V>;
    for (int64_t unit = 0; unit < depth; unit += V::kLanes) {
      typename V::F block[V::kLanes];
#pragma GCC unroll 16
      for (int r = 0; r < V::kLanes; ++r)
        block[r] = column + r < count ? load_units<C>(rows + (column + r) * stride, unit * C::kPair, size) : V::zero();
      V::transpose(block);
      const int64_t units = depth - unit < V::kLanes ? depth - unit : V::kLanes;
      for (int64_t u = 0; u < units; ++u) V::store(panel + (unit + u) * kPanel<V>, block[u]);
    }
  }
}

/// Rows [0, count) of `size` elements as a B operand whose depth is the rows and whose columns
/// are the elements: [panel][depth_units(count)][kPanel].
template <class C, class In>
void pack_paired(const In* rows, int64_t stride, int64_t count, int64_t size, RealOf<C>* out) {
  using V = typename C::V;
  const int64_t depth = depth_units<C>(count);
  for (int64_t column = 0; column < size; column += kPanel<V>) {
    RealOf<C>* panel = out + column / kPanel<V> * depth * kPanel<V>;
    for (int64_t unit = 0; unit < depth; ++unit, panel += kPanel<V>) {
      const int64_t row = unit * C::kPair;
      for (int64_t c = 0; c < kPanel<V> && column + c < size; c += int64_t{V::kLanes} * C::kPair) {
        typename V::F columns[C::kPair];
        C::load_paired(columns, rows + row * stride, stride, count - row, column + c, size);
        for (int i = 0; i < C::kPair; ++i) V::store(panel + c + i * V::kLanes, columns[i]);
      }
    }
  }
}

/// Rows [0, count) of `size` elements, transposed: an A operand whose rows are the elements and
/// whose depth is the rows, out[size rounded up to kLanes * kPair][ld].
template <class C, class In>
void pack_flipped(const In* rows, int64_t stride, int64_t count, int64_t size, RealOf<C>* out, int64_t ld) {
  using V = typename C::V;
  constexpr int64_t kElements = int64_t{V::kLanes} * C::kPair;
  for (int64_t unit = 0; unit < depth_units<C>(count); unit += V::kLanes) {
    for (int64_t begin = 0; begin < size; begin += kElements) {
      typename V::F block[C::kPair][V::kLanes];
#pragma GCC unroll 16
      for (int u = 0; u < V::kLanes; ++u) {
        const int64_t row = (unit + u) * C::kPair;
        typename V::F pair[C::kPair];
        C::load_paired(pair, rows + row * stride, stride, count - row, begin, size);
#pragma GCC unroll 2
        for (int i = 0; i < C::kPair; ++i) block[i][u] = pair[i];
      }
#pragma GCC unroll 2
      for (int i = 0; i < C::kPair; ++i) {
        V::transpose(block[i]);
#pragma GCC unroll 16
        for (int e = 0; e < V::kLanes; ++e) V::store(out + (begin + i * V::kLanes + e) * ld + unit, block[i][e]);
      }
    }
  }
}

}  // namespace tilewise::backends::cpu
