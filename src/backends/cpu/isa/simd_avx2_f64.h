// AVX2 + FMA vectors of doubles behind the names of simd_avx512.h.
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/cpu/isa/elements.h"

namespace tilewise::backends::cpu {

struct Avx2F64 {
  using F = __m256d;
  using I = __m256i;
  using M = __m256d;  // all bits of a lane, or none
  using Real = double;
  static constexpr int kLanes = 4;
  static constexpr int kPanelVectors = 2;
  static constexpr int kTileRows = 6;

  TILEWISE_INLINE static F zero() { return _mm256_setzero_pd(); }
  TILEWISE_INLINE static F set1(double x) { return _mm256_set1_pd(x); }
  TILEWISE_INLINE static F load(const double* p) { return _mm256_loadu_pd(p); }
  TILEWISE_INLINE static F load(const float* p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
  TILEWISE_INLINE static void store(double* p, F x) { _mm256_storeu_pd(p, x); }
  TILEWISE_INLINE static M first(int64_t n) {
    const int64_t count = n >= kLanes ? kLanes : n <= 0 ? 0 : n;
    return _mm256_castsi256_pd(_mm256_cmpgt_epi64(_mm256_set1_epi64x(count), _mm256_setr_epi64x(0, 1, 2, 3)));
  }
  TILEWISE_INLINE static F add(F a, F b) { return _mm256_add_pd(a, b); }
  TILEWISE_INLINE static F sub(F a, F b) { return _mm256_sub_pd(a, b); }
  TILEWISE_INLINE static F mul(F a, F b) { return _mm256_mul_pd(a, b); }
  TILEWISE_INLINE static F div(F a, F b) { return _mm256_div_pd(a, b); }
  TILEWISE_INLINE static F fma(F a, F b, F c) { return _mm256_fmadd_pd(a, b, c); }
  TILEWISE_INLINE static F fms(F a, F b, F c) { return _mm256_fmsub_pd(a, b, c); }
  TILEWISE_INLINE static F max(F a, F b) { return _mm256_max_pd(a, b); }
  TILEWISE_INLINE static F min(F a, F b) { return _mm256_min_pd(a, b); }
  TILEWISE_INLINE static F abs(F a) { return _mm256_andnot_pd(_mm256_set1_pd(-0.0), a); }
  TILEWISE_INLINE static M greater(F a, F b) { return _mm256_cmp_pd(a, b, _CMP_GT_OQ); }
  TILEWISE_INLINE static F select(M m, F yes, F no) { return _mm256_blendv_pd(no, yes, m); }
  TILEWISE_INLINE static bool any(M m) { return _mm256_movemask_pd(m) != 0; }
  TILEWISE_INLINE static double reduce_add(F a) {
    const __m128d h = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_add_sd(h, _mm_unpackhi_pd(h, h)));
  }
  TILEWISE_INLINE static double reduce_max(F a) {
    const __m128d h = _mm_max_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_max_sd(h, _mm_unpackhi_pd(h, h)));
  }
  TILEWISE_INLINE static F iota() { return _mm256_setr_pd(0, 1, 2, 3); }
  TILEWISE_INLINE static M at_least_u16(const uint16_t* draws, uint32_t threshold) {
    const I d = _mm256_cvtepu16_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(draws)));
    return _mm256_castsi256_pd(_mm256_cmpgt_epi64(d, _mm256_set1_epi64x(int64_t{threshold} - 1)));
  }
  /// As simd_avx2.h.
  TILEWISE_INLINE static F scale(F x, F n) {
    return _mm256_mul_pd(x, _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(n), 52)));
  }
  // As simd_avx2.h, of 2^-1023 and 2^1024.
  static constexpr bool kSplitsPowers = false;
  static constexpr double kLowest = -709.2, kHighest = 710.0, kRounder = 0x1.8p52 + 1023.0;

  /// Lane i: the sum over r[i].
  TILEWISE_INLINE static F sum_each(F (&r)[kLanes]) {
    const F a = _mm256_hadd_pd(r[0], r[1]), b = _mm256_hadd_pd(r[2], r[3]);
    return add(_mm256_permute2f128_pd(a, b, 0x20), _mm256_permute2f128_pd(a, b, 0x31));
  }

  /// Transposes a 4 x 4 block held in rows.
  TILEWISE_INLINE static void transpose(F (&r)[kLanes]) {
    const F a = _mm256_unpacklo_pd(r[0], r[1]), b = _mm256_unpackhi_pd(r[0], r[1]);
    const F c = _mm256_unpacklo_pd(r[2], r[3]), d = _mm256_unpackhi_pd(r[2], r[3]);
    r[0] = _mm256_permute2f128_pd(a, c, 0x20);
    r[1] = _mm256_permute2f128_pd(b, d, 0x20);
    r[2] = _mm256_permute2f128_pd(a, c, 0x31);
    r[3] = _mm256_permute2f128_pd(b, d, 0x31);
  }
};

}  // namespace tilewise::backends::cpu
