// Steps over quantised weights on AVX2. Of fp4, 64 elements in 32 bytes: both bytes of each number's bf16 are looked
// up and joined, and of two bf16 in 32 bits one is shifted up and one is masked, as only two ports of a processor
// shuffle. Half of every vector has a block of 32.
#pragma once

#include <stdint.h>

#include "backends/cpu/gemm/isa/code_steps.h"
#include "backends/cpu/isa/simd_avx2.h"

namespace tilewise::backends::cpu {

template <class C>
struct HalfSteps {
  using F = __m256;
  static constexpr int64_t kElements = 64;
  static constexpr int kVectors = 8;

  template <int kBlock>
  static constexpr int kShared = kBlock == 32 ? 8 : 4;

  /// Vector 4 q + r has elements r, 4 + r, 8 + r and 12 + r of sixteens q and q + 2.
  TILEWISE_INLINE static void load(F (&w)[kVectors], const E2m1* codes) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)), low_half = _mm256_set1_epi8(15);
    const __m256i nibbles[2] = {_mm256_and_si256(bytes, low_half),
                                _mm256_and_si256(_mm256_srli_epi16(bytes, 4), low_half)};
    // 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
    const __m256i low = both(0xC0804000C0800000, 0xC0804000C0800000);
    const __m256i high = both(0x404040403F3F3F00, 0xC0C0C0C0BFBFBF80);
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xFFFF0000));
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
      const __m256i l = _mm256_shuffle_epi8(low, nibbles[odd]), h = _mm256_shuffle_epi8(high, nibbles[odd]);
      const __m256i first = _mm256_unpacklo_epi8(l, h), second = _mm256_unpackhi_epi8(l, h);
      w[odd] = _mm256_castsi256_ps(_mm256_slli_epi32(first, 16));
      w[2 + odd] = _mm256_castsi256_ps(_mm256_and_si256(first, upper));
      w[4 + odd] = _mm256_castsi256_ps(_mm256_slli_epi32(second, 16));
      w[6 + odd] = _mm256_castsi256_ps(_mm256_and_si256(second, upper));
    }
  }

  template <int kBlock>
  TILEWISE_INLINE static F scale(const float* scales, int group) {
    return _mm256_set_m128(_mm_set1_ps(scales[kBlock == 32 ? 1 : 2 + group]), _mm_set1_ps(scales[group]));
  }

  static void order(float* units, int64_t elements) {
    for (int64_t k = 0; k < elements; k += kElements) {
      F out[kVectors];
#pragma GCC unroll 2
      for (int q = 0; q < 2; ++q) transpose(units + k + 16 * q, out + 4 * q);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) _mm256_storeu_ps(units + k + 8 * v, out[v]);
    }
  }

 private:
  /// Of sixteens from there on and 32 further.
  TILEWISE_INLINE static void transpose(const float* units, F* out) {
    F fours[4], pairs[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)
      fours[j] = _mm256_set_m128(_mm_loadu_ps(units + 32 + 4 * j), _mm_loadu_ps(units + 4 * j));
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      pairs[2 * j] = _mm256_unpacklo_ps(fours[2 * j], fours[2 * j + 1]);
      pairs[2 * j + 1] = _mm256_unpackhi_ps(fours[2 * j], fours[2 * j + 1]);
    }
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      out[2 * j] = _mm256_shuffle_ps(pairs[j], pairs[2 + j], 0x44);
      out[2 * j + 1] = _mm256_shuffle_ps(pairs[j], pairs[2 + j], 0xEE);
    }
  }
  /// Sixteen bytes in both halves.
  TILEWISE_INLINE static __m256i both(uint64_t first, uint64_t second) {
    return _mm256_setr_epi64x(static_cast<int64_t>(first), static_cast<int64_t>(second), static_cast<int64_t>(first),
                              static_cast<int64_t>(second));
  }
};

/// fp8, 32 elements in order, sixteen at a time by way of fp16 as Avx2::load().
template <class C>
struct HalfFloatSteps : StepsInOrder<C> {
  using F = __m256;
  static constexpr int kVectors = StepsInOrder<C>::kVectors;

  TILEWISE_INLINE static void load(F (&w)[kVectors], const E4m3* codes) {
    const F factor = _mm256_set1_ps(256.0f);
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m256i code = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + 16 * i)));
      const __m256i half = _mm256_and_si256(_mm256_slli_epi16(code, 7), _mm256_set1_epi16(static_cast<short>(0xBF80)));
      const __m256i sign = _mm256_set1_epi16(static_cast<short>(0x8000));
      const __m256i nan =
          _mm256_cmpeq_epi16(_mm256_or_si256(half, sign), _mm256_set1_epi16(static_cast<short>(0xBF80)));
      const __m256i kept = _mm256_or_si256(half, nan);
      w[2 * i] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(kept)), factor);
      w[2 * i + 1] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(kept, 1)), factor);
    }
  }
};

}  // namespace tilewise::backends::cpu
