// How few rows meet quantised weights: so many elements at a time, widened to vectors without their scales, and in
// which order of the depth. Sets with wide look-ups have steps of their own.
#pragma once

#include <stdint.h>

#include "backends/cpu/gemm/isa/codes.h"

namespace tilewise::backends::cpu {

/// 32 elements in order. Scales are of 32 elements, or of 16.
template <class C>
struct StepsInOrder {
  using V = typename C::V;
  using F = typename V::F;
  static constexpr int64_t kElements = 32;
  static constexpr int kVectors = static_cast<int>(kElements / (V::kLanes * C::kPair));

  /// Vectors that share a scale.
  template <int kBlock>
  static constexpr int kShared = kBlock == 32 ? kVectors : kVectors / 2;

  template <class T>
  TILEWISE_INLINE static void load(F (&w)[kVectors], const T* codes) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) w[v] = C::load_units(codes + v * V::kLanes * C::kPair / kPacked<T>);
  }
  /// Of the step's vectors [group * kShared, ...), from the scales of the step.
  template <int kBlock>
  TILEWISE_INLINE static F scale(const float* scales, int group) {
    return V::set1(scales[group]);
  }
  /// Units of a row in the steps' order.
  TILEWISE_INLINE static void order(RealOf<C>*, int64_t) {}
};

template <class C, class T>
struct CodeSteps : StepsInOrder<C> {};

}  // namespace tilewise::backends::cpu
