// AVX-512 vectors of doubles behind the names of simd_avx512.h.
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/cpu/isa/elements.h"

namespace tilewise::backends::cpu {

struct Avx512F64 {
  using F = __m512d;
  using I = __m512i;
  using M = __mmask8;
  using Real = double;
  static constexpr int kLanes = 8;
  static constexpr int kPanelVectors = 4;
  static constexpr int kTileRows = 6;

  TILEWISE_INLINE static F zero() { return _mm512_setzero_pd(); }
  TILEWISE_INLINE static F set1(double x) { return _mm512_set1_pd(x); }
  TILEWISE_INLINE static F load(const double* p) { return _mm512_loadu_pd(p); }
  TILEWISE_INLINE static F load(const float* p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
  TILEWISE_INLINE static void store(double* p, F x) { _mm512_storeu_pd(p, x); }
  TILEWISE_INLINE static M first(int64_t n) {
    return static_cast<M>(n >= kLanes ? 0xFFu : n <= 0 ? 0u : (1u << n) - 1u);
  }
  TILEWISE_INLINE static F add(F a, F b) { return _mm512_add_pd(a, b); }
  TILEWISE_INLINE static F sub(F a, F b) { return _mm512_sub_pd(a, b); }
  TILEWISE_INLINE static F mul(F a, F b) { return _mm512_mul_pd(a, b); }
  TILEWISE_INLINE static F div(F a, F b) { return _mm512_div_pd(a, b); }
  TILEWISE_INLINE static F fma(F a, F b, F c) { return _mm512_fmadd_pd(a, b, c); }
  TILEWISE_INLINE static F fms(F a, F b, F c) { return _mm512_fmsub_pd(a, b, c); }
  /// b where either is NaN, as the instruction does.
  TILEWISE_INLINE static F max(F a, F b) { return _mm512_max_pd(a, b); }
  TILEWISE_INLINE static F abs(F a) { return _mm512_abs_pd(a); }
  TILEWISE_INLINE static M greater(F a, F b) { return _mm512_cmp_pd_mask(a, b, _CMP_GT_OQ); }
  TILEWISE_INLINE static F select(M m, F yes, F no) { return _mm512_mask_blend_pd(m, no, yes); }
  TILEWISE_INLINE static bool any(M m) { return m != 0; }
  TILEWISE_INLINE static double reduce_add(F a) { return _mm512_reduce_add_pd(a); }
  TILEWISE_INLINE static double reduce_max(F a) { return _mm512_reduce_max_pd(a); }
  TILEWISE_INLINE static F iota() { return _mm512_setr_pd(0, 1, 2, 3, 4, 5, 6, 7); }
  TILEWISE_INLINE static M at_least_u16(const uint16_t* draws, uint32_t threshold) {
    const I d = _mm512_cvtepu16_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(draws)));
    return _mm512_cmpge_epu64_mask(d, _mm512_set1_epi64(threshold));
  }
  /// x less the nearest integer: 0 for infinities.
  TILEWISE_INLINE static F fraction(F x) { return _mm512_reduce_pd(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  /// x * 2^n for integral n and infinities.
  TILEWISE_INLINE static F scale(F x, F n) { return _mm512_scalef_pd(x, n); }
  static constexpr bool kSplitsPowers = true;

  /// Lane i: the sum over r[i].
  TILEWISE_INLINE static F sum_each(F (&r)[kLanes]) {
    F t[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      t[i] = add(_mm512_unpacklo_pd(r[2 * i], r[2 * i + 1]), _mm512_unpackhi_pd(r[2 * i], r[2 * i + 1]));
    return fold_quarters(fold_quarters(t[0], t[1]), fold_quarters(t[2], t[3]));
  }

  /// Transposes an 8 x 8 block held in rows.
  TILEWISE_INLINE static void transpose(F (&r)[kLanes]) {
    F t[kLanes];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      t[i] = _mm512_unpacklo_pd(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_pd(r[i], r[i + 1]);
    }
    // Quarters: t[i] holds columns i % 2, i % 2 + 2, + 4 and + 6 of rows i - i % 2 and the next.
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const F low02 = _mm512_shuffle_f64x2(t[i], t[i + 2], 0x88), low13 = _mm512_shuffle_f64x2(t[i], t[i + 2], 0xDD);
      const F high02 = _mm512_shuffle_f64x2(t[i + 4], t[i + 6], 0x88);
      const F high13 = _mm512_shuffle_f64x2(t[i + 4], t[i + 6], 0xDD);
      r[i] = _mm512_shuffle_f64x2(low02, high02, 0x88);
      r[i + 4] = _mm512_shuffle_f64x2(low02, high02, 0xDD);
      r[i + 2] = _mm512_shuffle_f64x2(low13, high13, 0x88);
      r[i + 6] = _mm512_shuffle_f64x2(low13, high13, 0xDD);
    }
  }

 private:
  /// Quarters 0 + 1 and 2 + 3 of a, then of b.
  TILEWISE_INLINE static F fold_quarters(F a, F b) {
    return add(_mm512_shuffle_f64x2(a, b, 0x88), _mm512_shuffle_f64x2(a, b, 0xDD));
  }
};

}  // namespace tilewise::backends::cpu
