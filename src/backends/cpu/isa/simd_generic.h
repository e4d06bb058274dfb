// Four floats in the compiler's own vector type: whatever machine there is, no intrinsics.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "backends/cpu/isa/elements.h"
#include "device/common/float16.h"
#include "device/common/float4.h"

namespace tilewise::backends::cpu {

struct Generic {
  using F [[gnu::vector_size(16)]] = float;
  using I [[gnu::vector_size(16)]] = int32_t;
  using M = I;  // -1 or 0
  using Real = float;
  static constexpr int kLanes = 4;
  static constexpr int kPanelVectors = 2;
  static constexpr int kTileRows = 4;

  TILEWISE_INLINE static F zero() { return F{}; }
  TILEWISE_INLINE static F set1(float x) { return F{x, x, x, x}; }
  TILEWISE_INLINE static F load(const float* p) {
    F x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
  }
  TILEWISE_INLINE static void store(float* p, F x) { __builtin_memcpy(p, &x, sizeof x); }
  TILEWISE_INLINE static M first(int64_t n) {
    const int32_t count = static_cast<int32_t>(n >= kLanes ? kLanes : n <= 0 ? 0 : n);
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
  TILEWISE_INLINE static F abs(F a) { return reinterpret_cast<F>(reinterpret_cast<I>(a) & 0x7FFFFFFF); }
  TILEWISE_INLINE static M greater(F a, F b) { return a > b; }
  TILEWISE_INLINE static F select(M m, F yes, F no) { return m ? yes : no; }
  TILEWISE_INLINE static bool any(M m) { return (m[0] | m[1] | m[2] | m[3]) != 0; }
  TILEWISE_INLINE static float reduce_add(F a) { return (a[0] + a[2]) + (a[1] + a[3]); }
  TILEWISE_INLINE static float reduce_max(F a) {
    const float x = a[0] > a[2] ? a[0] : a[2], y = a[1] > a[3] ? a[1] : a[3];
    return x > y ? x : y;
  }
  TILEWISE_INLINE static F iota() { return F{0, 1, 2, 3}; }
  TILEWISE_INLINE static M at_least_u16(const uint16_t* draws, uint32_t threshold) {
    const auto t = static_cast<int32_t>(threshold);
    return I{draws[0], draws[1], draws[2], draws[3]} >= I{t, t, t, t};
  }
  /// As simd_avx2.h.
  TILEWISE_INLINE static F scale(F x, F n) { return x * reinterpret_cast<F>(reinterpret_cast<I>(n) << 23); }
  // e^x of kLowest and below is 0, of kHighest and above infinity: 2^-127 and 2^128 as scale() has them.
  static constexpr bool kSplitsPowers = false;
  static constexpr float kLowest = -88.1f, kHighest = 89.0f, kRounder = 0x1.8p23f + 127.0f;

  TILEWISE_INLINE static F load(const Bf16* p) {
    return reinterpret_cast<F>(I{p[0].bits, p[1].bits, p[2].bits, p[3].bits} << 16);
  }
  TILEWISE_INLINE static F load(const F16* p) {
    return F{device::f16_to_float(p[0].bits), device::f16_to_float(p[1].bits), device::f16_to_float(p[2].bits),
             device::f16_to_float(p[3].bits)};
  }
  /// Numbers below 2^-6 are what 2^-6 and their mantissa have beyond 2^-6: no subnormal float is ever made.
  TILEWISE_INLINE static F load(const E4m3* p) {
    const I code{p[0].bits, p[1].bits, p[2].bits, p[3].bits};
    const I magnitude = code & 0x7F, small = magnitude < 8;
    const I bits = (magnitude << 20) + (120 << 23) + (small & (1 << 23));
    const F value = reinterpret_cast<F>(bits) - reinterpret_cast<F>(small & (121 << 23));
    const I nan = (magnitude == 0x7F) & 0x7FC00000;
    return reinterpret_cast<F>(reinterpret_cast<I>(value) | nan | ((code & 0x80) << 24));
  }
  TILEWISE_INLINE static F load(const E8m0* p) {
    const I code{p[0].bits, p[1].bits, p[2].bits, p[3].bits};
    return reinterpret_cast<F>((code << 23) | ((code == 0) & 0x00400000) | ((code == 255) & 0x7FC00000));
  }
  TILEWISE_INLINE static F load(const E2m1* p) {
    return F{device::e2m1_to_float(p[0].pair & 15), device::e2m1_to_float(p[0].pair >> 4),
             device::e2m1_to_float(p[1].pair & 15), device::e2m1_to_float(p[1].pair >> 4)};
  }
  TILEWISE_INLINE static void store(Bf16* p, F x) {
#pragma GCC unroll 4
    for (int i = 0; i < kLanes; ++i) p[i].bits = device::float_to_bf16(x[i]);
  }
  TILEWISE_INLINE static void store(F16* p, F x) {
#pragma GCC unroll 4
    for (int i = 0; i < kLanes; ++i) p[i].bits = device::float_to_f16(x[i]);
  }

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
