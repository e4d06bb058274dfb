// Four doubles in the compiler's own vector type, behind the names of simd_generic.h.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "backends/cpu/isa/elements.h"

namespace tilewise::backends::cpu {

/// Two registers where a register holds two: decoding computes four rows at a time.
struct GenericF64 {
  using F [[gnu::vector_size(32)]] = double;
  using I [[gnu::vector_size(32)]] = int64_t;
  using M = I;  // -1 or 0
  using Real = double;
  static constexpr int kLanes = 4;
  static constexpr int kPanelVectors = 2;
  static constexpr int kTileRows = 4;

  TILEWISE_INLINE static F zero() { return F{}; }
  TILEWISE_INLINE static F set1(double x) { return F{x, x, x, x}; }
  TILEWISE_INLINE static F load(const double* p) {
    F x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
  }
  TILEWISE_INLINE static F load(const float* p) { return F{p[0], p[1], p[2], p[3]}; }
  TILEWISE_INLINE static void store(double* p, F x) { __builtin_memcpy(p, &x, sizeof x); }
  TILEWISE_INLINE static M first(int64_t n) {
    const int64_t count = n >= kLanes ? kLanes : n <= 0 ? 0 : n;
    return I{0, 1, 2, 3} < I{count, count, count, count};
  }
  TILEWISE_INLINE static F add(F a, F b) { return a + b; }
  TILEWISE_INLINE static F sub(F a, F b) { return a - b; }
  TILEWISE_INLINE static F mul(F a, F b) { return a * b; }
  TILEWISE_INLINE static F div(F a, F b) { return a / b; }
  TILEWISE_INLINE static F fma(F a, F b, F c) { return a * b + c; }
  TILEWISE_INLINE static F fms(F a, F b, F c) { return a * b - c; }
  TILEWISE_INLINE static F max(F a, F b) { return a > b ? a : b; }
  TILEWISE_INLINE static F min(F a, F b) { return a < b ? a : b; }
  TILEWISE_INLINE static F abs(F a) { return reinterpret_cast<F>(reinterpret_cast<I>(a) & INT64_MAX); }
  TILEWISE_INLINE static M greater(F a, F b) { return a > b; }
  TILEWISE_INLINE static F select(M m, F yes, F no) { return m ? yes : no; }
  TILEWISE_INLINE static bool any(M m) { return (m[0] | m[1] | m[2] | m[3]) != 0; }
  TILEWISE_INLINE static double reduce_add(F a) { return (a[0] + a[2]) + (a[1] + a[3]); }
  TILEWISE_INLINE static double reduce_max(F a) {
    const double x = a[0] > a[2] ? a[0] : a[2], y = a[1] > a[3] ? a[1] : a[3];
    return x > y ? x : y;
  }
  TILEWISE_INLINE static F iota() { return F{0, 1, 2, 3}; }
  TILEWISE_INLINE static M at_least_u16(const uint16_t* draws, uint32_t threshold) {
    const int64_t t = threshold;
    return I{draws[0], draws[1], draws[2], draws[3]} >= I{t, t, t, t};
  }
  /// As simd_avx2_f64.h.
  TILEWISE_INLINE static F scale(F x, F n) { return x * reinterpret_cast<F>(reinterpret_cast<I>(n) << 52); }
  // As simd_avx2.h, of 2^-1023 and 2^1024.
  static constexpr bool kSplitsPowers = false;
  static constexpr double kLowest = -709.2, kHighest = 710.0, kRounder = 0x1.8p52 + 1023.0;

  TILEWISE_INLINE static F sum_each(F (&r)[kLanes]) {
    return F{reduce_add(r[0]), reduce_add(r[1]), reduce_add(r[2]), reduce_add(r[3])};
  }
  TILEWISE_INLINE static void transpose(F (&r)[kLanes]) {
    const F a = r[0], b = r[1], c = r[2], d = r[3];
    r[0] = F{a[0], b[0], c[0], d[0]};
    r[1] = F{a[1], b[1], c[1], d[1]};
    r[2] = F{a[2], b[2], c[2], d[2]};
    r[3] = F{a[3], b[3], c[3], d[3]};
  }
};

}  // namespace tilewise::backends::cpu
