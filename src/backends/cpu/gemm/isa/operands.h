// What rows and weights are made of, as types: kernels are told by number, and their inner loops know.
#pragma once

#include <stdint.h>

#include "backends/cpu/gemm/gemm_kernels.hpp"
#include "backends/cpu/isa/pack.h"

namespace tilewise::backends::cpu {

/// Whether C multiplies pairs of bf16, and nothing that bf16 does not hold exactly.
template <class C>
inline constexpr bool kPairs = C::kPair > 1;
/// Whether C computes in fp64, where nothing is quantised.
template <class C>
inline constexpr bool kWide = sizeof(typename C::V::Real) == sizeof(double);

/// What rows are made of once they are numbers: Reals, or bf16 where pairs are multiplied.
template <bool kPaired, class Real>
struct GatheredElement {
  using Type = Real;
};
template <class Real>
struct GatheredElement<true, Real> {
  using Type = Bf16;
};

/// Calls visit(T*) with the type of elements that are not quantised.
template <class C, class Visit>
TILEWISE_INLINE void with_numbers(GemmElement element, Visit&& visit) {
  if constexpr (kWide<C>) {
    visit(static_cast<const double*>(nullptr));
  } else if constexpr (kPairs<C>) {
    visit(static_cast<const Bf16*>(nullptr));
  } else {
    if (element == GemmElement::bf16) return visit(static_cast<const Bf16*>(nullptr));
    if (element == GemmElement::f16) return visit(static_cast<const F16*>(nullptr));
    visit(static_cast<const float*>(nullptr));
  }
}

/// Elements of T that share an address.
template <class T>
inline constexpr int64_t kPacked = 1;
template <>
inline constexpr int64_t kPacked<E2m1> = 2;

template <class T>
TILEWISE_INLINE const T* element_at(const void* data, int64_t index) {
  return static_cast<const T*>(data) + index / kPacked<T>;
}

TILEWISE_INLINE int64_t memory_row(const GemmTask& t, int64_t row) { return t.row_index ? t.row_index[row] : row; }

template <class T>
TILEWISE_INLINE const T* row_of(const GemmTask& t, int64_t row) {
  return element_at<T>(t.x, memory_row(t, row) * t.x_stride);
}

/// Elements [depth, depth + size) of rows [row, row + count) that are not quantised, as A operands `stride` apart.
template <class C>
void pack_rows(const GemmTask& t, int64_t row, int64_t count, int64_t depth, int64_t size, RealOf<C>* out,
               int64_t stride) {
  with_numbers<C>(t.x_element, [&]<class X>(const X*) {
    for (int64_t r = 0; r < count; ++r) pack_row<C>(row_of<X>(t, row + r) + depth, size, out + r * stride);
  });
}

}  // namespace tilewise::backends::cpu
