// Rows of numbers of any element as Reals, and the reverse.
#pragma once

#include <stdint.h>

#include "backends/cpu/gemm/gemm_kernels.hpp"
#include "backends/cpu/isa/output.h"

namespace tilewise::backends::cpu {

/// Calls visit(T*) with the type of numbers that V loads and stores.
template <class V, class Visit>
TILEWISE_INLINE void with_number_type(GemmElement element, Visit&& visit) {
  if constexpr (sizeof(typename V::Real) == sizeof(double)) {
    visit(static_cast<double*>(nullptr));
  } else {
    if (element == GemmElement::bf16) return visit(static_cast<Bf16*>(nullptr));
    if (element == GemmElement::f16) return visit(static_cast<F16*>(nullptr));
    visit(static_cast<float*>(nullptr));
  }
}

/// Elements [at, at + count) of `from` times `factor`; to has room to whole vectors, which zeros fill.
template <class V, class T, class To>
void load_scaled(const T* from, int64_t count, typename V::Real factor, To* to) {
  const typename V::F f = V::set1(factor);
  int64_t i = 0;
  for (; i + V::kLanes <= count; i += V::kLanes) V::store(to + i, V::mul(V::load(from + i), f));
  if (i == count) return;
  T tail[V::kLanes] = {};
  for (int64_t j = i; j < count; ++j) tail[j - i] = from[j];
  V::store(to + i, V::mul(V::load(tail), f));
}

/// Numbers [at, at + count) of a tensor as Reals.
template <class V>
void load_numbers(const void* from, GemmElement element, int64_t at, int64_t count, typename V::Real* to) {
  with_number_type<V>(element, [&]<class T>(T*) { load_scaled<V>(static_cast<const T*>(from) + at, count, 1, to); });
}

template <class V>
void store_numbers(const typename V::Real* from, int64_t count, typename V::Real factor, void* to, GemmElement element,
                   int64_t at) {
  with_number_type<V>(element, [&]<class T>(T*) { store_scaled<V>(from, count, factor, static_cast<T*>(to) + at); });
}

}  // namespace tilewise::backends::cpu
