// AVX-512 vectors behind the names that every kernel of this folder uses. Included by the
// AVX-512 translation units alone; everything is a forced-inline member, so no symbol leaves them.
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/cpu/isa/elements.h"

namespace tilewise::backends::cpu {

struct Avx512 {
  using F = __m512;   // floats
  using I = __m512i;  // 32-bit words
  using M = __mmask16;
  using Real = float;
  static constexpr int kLanes = 16;
  static constexpr int kPanelVectors = 4;  // 6 x 4 accumulators + 4 + 1 of 32 registers
  static constexpr int kTileRows = 6;

  TILEWISE_INLINE static F zero() { return _mm512_setzero_ps(); }
  TILEWISE_INLINE static F set1(float x) { return _mm512_set1_ps(x); }
  TILEWISE_INLINE static F load(const float* p) { return _mm512_loadu_ps(p); }
  TILEWISE_INLINE static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  TILEWISE_INLINE static M first(int64_t n) {
    return static_cast<M>(n >= kLanes ? 0xFFFFu : n <= 0 ? 0u : (1u << n) - 1u);
  }
  TILEWISE_INLINE static F add(F a, F b) { return _mm512_add_ps(a, b); }
  TILEWISE_INLINE static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  TILEWISE_INLINE static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  TILEWISE_INLINE static F div(F a, F b) { return _mm512_div_ps(a, b); }
  TILEWISE_INLINE static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  TILEWISE_INLINE static F fms(F a, F b, F c) { return _mm512_fmsub_ps(a, b, c); }
  /// b where either is NaN, as the instruction does.
  TILEWISE_INLINE static F max(F a, F b) { return _mm512_max_ps(a, b); }
  TILEWISE_INLINE static F abs(F a) { return _mm512_abs_ps(a); }
  TILEWISE_INLINE static M greater(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
  TILEWISE_INLINE static F select(M m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }
  TILEWISE_INLINE static bool any(M m) { return m != 0; }
  TILEWISE_INLINE static float reduce_add(F a) { return _mm512_reduce_add_ps(a); }
  TILEWISE_INLINE static float reduce_max(F a) { return _mm512_reduce_max_ps(a); }
  /// 0, 1, 2, ... as floats.
  TILEWISE_INLINE static F iota() { return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
  /// Lanes whose 16-bit draw is at least the threshold.
  TILEWISE_INLINE static M at_least_u16(const uint16_t* draws, uint32_t threshold) {
    const I d = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(draws)));
    return _mm512_cmpge_epu32_mask(d, _mm512_set1_epi32(static_cast<int>(threshold)));
  }
  /// Lanes whose byte is not zero.
  TILEWISE_INLINE static M true_bytes(const uint8_t* p) {
    return _mm_test_epi8_mask(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), _mm_set1_epi8(-1));
  }
  /// x less the nearest integer: 0 for infinities.
  TILEWISE_INLINE static F fraction(F x) { return _mm512_reduce_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  /// x * 2^n for integral n and infinities.
  TILEWISE_INLINE static F scale(F x, F n) { return _mm512_scalef_ps(x, n); }
  static constexpr bool kSplitsPowers = true;

  // Loads of 16 elements as floats, and the reverse, for each element type.
  TILEWISE_INLINE static F load(const Bf16* p) {
    const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
  }
  TILEWISE_INLINE static F load(const F16* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  /// Eight exponents further up the others are normal numbers of fp32 but for two kinds, which are looked up.
  TILEWISE_INLINE static F load(const E4m3* p) {
    const I code = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const I magnitude = _mm512_and_si512(_mm512_slli_epi32(code, 20), _mm512_set1_epi32(0x07F00000));
    const I above = _mm512_sub_epi32(magnitude, _mm512_set1_epi32(0x00800000));       // below 2^-6 it wraps around
    const M special = _mm512_cmpgt_epu32_mask(above, _mm512_set1_epi32(0x07600000));  // NaN: 0x07700000
    const I normal = _mm512_add_epi32(above, _mm512_set1_epi32(0x3C800000));
    const I table = _mm512_castps_si512(_mm512_setr_ps(0.0f, 0x1p-9f, 0x2p-9f, 0x3p-9f, 0x4p-9f, 0x5p-9f, 0x6p-9f,
                                                       0x7p-9f, 0, 0, 0, 0, 0, 0, 0, __builtin_nanf("")));
    const I bits = _mm512_mask_permutexvar_epi32(normal, special, code, table);
    constexpr int kFirstOrBoth = 0xF8;  // a | (b & c)
    return _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(bits, code, _mm512_set1_epi32(static_cast<int>(0x80000000u)), kFirstOrBoth));
  }
  TILEWISE_INLINE static F load(const E8m0* p) {
    const I code = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const I power = _mm512_slli_epi32(code, 23), infinite = _mm512_set1_epi32(0x7F800000);
    const I least = _mm512_mask_mov_epi32(power, _mm512_testn_epi32_mask(code, code), _mm512_set1_epi32(0x00400000));
    const M nan = _mm512_cmpeq_epi32_mask(power, infinite);
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(least, nan, _mm512_set1_epi32(0x7FC00000)));
  }
  /// 16 numbers of 8 bytes, looked up by four bits that a byte's halves leave lowest.
  TILEWISE_INLINE static F load(const E2m1* p) {
    const I bytes = _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return look_up(_mm512_or_si512(bytes, _mm512_slli_epi64(bytes, 28)));
  }
  /// Of the codes in the words' lowest four bits.
  TILEWISE_INLINE static F look_up(I codes) {
    const F table = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f,
                                   -3.0f, -4.0f, -6.0f);
    return _mm512_permutexvar_ps(codes, table);
  }
  TILEWISE_INLINE static void store(Bf16* p, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(round_to_bf16(x)));
  }
  TILEWISE_INLINE static void store(F16* p, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  /// bf16 bits in the low half of each word: nearest even, NaN kept quiet.
  TILEWISE_INLINE static I round_to_bf16(F x) {
    const I bits = _mm512_castps_si512(x);
    const I odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const I rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
    const M nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const I quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    return _mm512_srli_epi32(_mm512_mask_blend_epi32(nan, rounded, quiet), 16);
  }

  /// Lane i: the sum over r[i].
  TILEWISE_INLINE static F sum_each(F (&r)[kLanes]) {
    F t[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i)
      t[i] = add(_mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]), _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) t[i] = add(pair_low(t[2 * i], t[2 * i + 1]), pair_high(t[2 * i], t[2 * i + 1]));
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) t[i] = fold_quarters(t[2 * i], t[2 * i + 1]);
    return fold_quarters(t[0], t[1]);
  }

  /// Transposes a 16 x 16 block of 32-bit words held in rows.
  TILEWISE_INLINE static void transpose(F (&r)[kLanes]) {
    F t[kLanes];
    for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      r[i + 0] = pair_low(t[i], t[i + 2]);
      r[i + 1] = pair_high(t[i], t[i + 2]);
      r[i + 2] = pair_low(t[i + 1], t[i + 3]);
      r[i + 3] = pair_high(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
      t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
      t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xDD);
      t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
      t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xDD);
    }
    for (int i = 0; i < 4; ++i) {
      r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
      r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xDD);
      r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
      r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xDD);
    }
  }

 private:
  /// Quarters 0 + 1 and 2 + 3 of a, then of b.
  TILEWISE_INLINE static F fold_quarters(F a, F b) {
    return add(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
  }
  TILEWISE_INLINE static F pair_low(F a, F b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  }
  TILEWISE_INLINE static F pair_high(F a, F b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  }
};

}  // namespace tilewise::backends::cpu
