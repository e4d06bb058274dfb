// AVX2 + FMA + F16C vectors behind the names of simd_avx512.h.
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/cpu/isa/elements.h"

namespace tilewise::backends::cpu {

struct Avx2 {
  using F = __m256;
  using I = __m256i;
  using M = __m256;  // all bits of a lane, or none
  using Real = float;
  static constexpr int kLanes = 8;
  static constexpr int kPanelVectors = 2;  // 6 x 2 accumulators + 2 + 1 of 16 registers
  static constexpr int kTileRows = 6;

  TILEWISE_INLINE static F zero() { return _mm256_setzero_ps(); }
  TILEWISE_INLINE static F set1(float x) { return _mm256_set1_ps(x); }
  TILEWISE_INLINE static F load(const float* p) { return _mm256_loadu_ps(p); }
  TILEWISE_INLINE static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  TILEWISE_INLINE static M first(int64_t n) {
    const int32_t count = static_cast<int32_t>(n >= kLanes ? kLanes : n <= 0 ? 0 : n);
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)));
  }
  TILEWISE_INLINE static F add(F a, F b) { return _mm256_add_ps(a, b); }
  TILEWISE_INLINE static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  TILEWISE_INLINE static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  TILEWISE_INLINE static F div(F a, F b) { return _mm256_div_ps(a, b); }
  TILEWISE_INLINE static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  TILEWISE_INLINE static F fms(F a, F b, F c) { return _mm256_fmsub_ps(a, b, c); }
  TILEWISE_INLINE static F max(F a, F b) { return _mm256_max_ps(a, b); }
  TILEWISE_INLINE static F min(F a, F b) { return _mm256_min_ps(a, b); }
  TILEWISE_INLINE static F abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  TILEWISE_INLINE static M greater(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
  TILEWISE_INLINE static F select(M m, F yes, F no) { return _mm256_blendv_ps(no, yes, m); }
  TILEWISE_INLINE static bool any(M m) { return _mm256_movemask_ps(m) != 0; }
  TILEWISE_INLINE static float reduce_add(F a) {
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
  }
  TILEWISE_INLINE static float reduce_max(F a) {
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
  }
  TILEWISE_INLINE static F iota() { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }
  TILEWISE_INLINE static M at_least_u16(const uint16_t* draws, uint32_t threshold) {
    const I d = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(draws)));
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(d, _mm256_set1_epi32(static_cast<int>(threshold) - 1)));
  }
  /// x in [0.5, 2) times 2^n, where math.h's power_of() has left n in the lowest bits: AVX2 has no scalef. NaN in x
  /// survives the product.
  TILEWISE_INLINE static F scale(F x, F n) {
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(n), 23)));
  }
  // e^x of kLowest and below is 0, of kHighest and above infinity: 2^-127 and 2^128 as scale() has them.
  static constexpr bool kSplitsPowers = false;
  static constexpr float kLowest = -88.1f, kHighest = 89.0f, kRounder = 0x1.8p23f + 127.0f;

  TILEWISE_INLINE static F load(const Bf16* p) {
    const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
  }
  TILEWISE_INLINE static F load(const F16* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  /// By way of fp16, whose exponents start eight lower; NaN has no other number's pattern there.
  TILEWISE_INLINE static F load(const E4m3* p) {
    const __m128i code = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    const __m128i half = _mm_and_si128(_mm_slli_epi16(code, 7), _mm_set1_epi16(static_cast<short>(0xBF80)));
    const __m128i sign = _mm_set1_epi16(static_cast<short>(0x8000));
    const __m128i nan = _mm_cmpeq_epi16(_mm_or_si128(half, sign), _mm_set1_epi16(static_cast<short>(0xBF80)));
    return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(half, nan)), _mm256_set1_ps(256.0f));
  }
  TILEWISE_INLINE static F load(const E8m0* p) {
    const I code = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    const I least = _mm256_and_si256(_mm256_cmpeq_epi32(code, _mm256_setzero_si256()), _mm256_set1_epi32(0x00400000));
    const I nan = _mm256_and_si256(_mm256_cmpeq_epi32(code, _mm256_set1_epi32(255)), _mm256_set1_epi32(0x7FC00000));
    return _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(code, 23), _mm256_or_si256(least, nan)));
  }
  /// 8 numbers of 4 bytes: magnitudes are looked up by three bits, and signs joined.
  TILEWISE_INLINE static F load(const E2m1* p) {
    int32_t word;
    __builtin_memcpy(&word, p, sizeof word);
    const I codes = _mm256_srlv_epi32(_mm256_set1_epi32(word), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    const F table = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    const F sign = _mm256_and_ps(_mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)), _mm256_set1_ps(-0.0f));
    return _mm256_or_ps(_mm256_permutevar8x32_ps(table, codes), sign);
  }
  TILEWISE_INLINE static void store(Bf16* p, F x) {
    const I words = round_to_bf16(x);
    const __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), halves);
  }
  TILEWISE_INLINE static void store(F16* p, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  /// Lane i: the sum over r[i].
  TILEWISE_INLINE static F sum_each(F (&r)[kLanes]) {
    const F a = _mm256_hadd_ps(_mm256_hadd_ps(r[0], r[1]), _mm256_hadd_ps(r[2], r[3]));
    const F b = _mm256_hadd_ps(_mm256_hadd_ps(r[4], r[5]), _mm256_hadd_ps(r[6], r[7]));
    return add(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  }

  /// Transposes an 8 x 8 block of 32-bit words held in rows.
  TILEWISE_INLINE static void transpose(F (&r)[kLanes]) {
    F t[kLanes];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
      r[i + 0] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
      r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xEE);
      r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
      r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
      t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) r[i] = t[i];
  }

 private:
  /// bf16 bits in the low half of each word: nearest even, NaN kept quiet.
  TILEWISE_INLINE static I round_to_bf16(F x) {
    const I bits = _mm256_castps_si256(x);
    const I odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const I rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
    const I quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const F nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    const F chosen = _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), nan);
    return _mm256_srli_epi32(_mm256_castps_si256(chosen), 16);
  }
};

}  // namespace tilewise::backends::cpu
