// Steps over fp4 on AVX-512: 128 elements in 64 bytes, whose words' four bits shifted lowest look up a number each. A
// quarter of every vector has a block of 32, an eighth one of 16.
#pragma once

#include <stdint.h>

#include "backends/cpu/gemm/isa/code_steps.h"
#include "backends/cpu/isa/simd_avx512.h"

namespace tilewise::backends::cpu {

template <class C>
struct StepsByLanes {
  using F = __m512;
  static constexpr int64_t kElements = 128;

  template <int kBlock>
  TILEWISE_INLINE static F scale(const float* scales, int) {
    const __m512i quarters = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512i eighths = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(kBlock == 32 ? quarters : eighths, _mm512_loadu_ps(scales));
  }
};

/// fp32: vector v has element v of each eight.
template <class C>
struct WordSteps : StepsByLanes<C> {
  using F = __m512;
  static constexpr int kVectors = 8;
  template <int kBlock>
  static constexpr int kShared = kVectors;

  TILEWISE_INLINE static void load(F (&w)[kVectors], const E2m1* codes) {
    const __m512i words = _mm512_loadu_si512(codes);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) w[v] = Avx512::look_up(_mm512_srli_epi32(words, static_cast<unsigned>(4 * v)));
  }
  static void order(float* units, int64_t elements) {
    const __m512i eighth = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                              _mm512_set1_epi32(8));
    for (int64_t k = 0; k < elements; k += 128) {
      F out[kVectors];
      for (int v = 0; v < kVectors; ++v) out[v] = _mm512_i32gather_ps(eighth, units + k + v, 4);
      for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(units + k + 16 * v, out[v]);
    }
  }
};

/// Pairs of bf16: vector v has element v of each four, so that a pair is of neighbouring fours.
template <class C>
struct HalfWordSteps : StepsByLanes<C> {
  using F = __m512;
  static constexpr int kVectors = 4;
  template <int kBlock>
  static constexpr int kShared = kVectors;

  TILEWISE_INLINE static void load(F (&w)[kVectors], const E2m1* codes) {
    // 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, twice: five bits choose a word.
    constexpr int64_t k0 = 0x3FC03F803F000000, k1 = 0x40C0408040404000;
    constexpr auto k2 = static_cast<int64_t>(0xBFC0BF80BF008000), k3 = static_cast<int64_t>(0xC0C0C080C040C000);
    const __m512i table = _mm512_setr_epi64(k0, k1, k2, k3, k0, k1, k2, k3), words = _mm512_loadu_si512(codes);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      w[v] =
          _mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_srli_epi16(words, static_cast<unsigned>(4 * v)), table));
  }
  static void order(float* units, int64_t elements) {
    // Elements v, v + 4, ... of 32 to quarter v.
    const __m512i fours = _mm512_set_epi16(31, 27, 23, 19, 15, 11, 7, 3, 30, 26, 22, 18, 14, 10, 6, 2, 29, 25, 21, 17,
                                           13, 9, 5, 1, 28, 24, 20, 16, 12, 8, 4, 0);
    for (int64_t k = 0; k < elements; k += 128, units += 64) {
      F a[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
        a[i] = _mm512_castsi512_ps(_mm512_permutexvar_epi16(fours, _mm512_loadu_si512(units + 16 * i)));
      const F low = _mm512_shuffle_f32x4(a[0], a[1], 0x44), high = _mm512_shuffle_f32x4(a[0], a[1], 0xEE);
      const F low2 = _mm512_shuffle_f32x4(a[2], a[3], 0x44), high2 = _mm512_shuffle_f32x4(a[2], a[3], 0xEE);
      _mm512_storeu_ps(units, _mm512_shuffle_f32x4(low, low2, 0x88));
      _mm512_storeu_ps(units + 16, _mm512_shuffle_f32x4(low, low2, 0xDD));
      _mm512_storeu_ps(units + 32, _mm512_shuffle_f32x4(high, high2, 0x88));
      _mm512_storeu_ps(units + 48, _mm512_shuffle_f32x4(high, high2, 0xDD));
    }
  }
};

}  // namespace tilewise::backends::cpu
