// Products of bf16 pairs with one side in fp8, looked up byte by byte (AVX512-VBMI): a third of the instructions that
// compute_bf16.h takes to widen it. Decoding alone uses it.
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/compute_bf16.h"

namespace tilewise::backends::cpu {

struct Avx512Vbmi : Avx512 {};

/// Of each magnitude in e4m3, the high or the low byte of the bf16.
struct ByteTable {
  alignas(64) uint8_t bytes[128] = {};

  consteval explicit ByteTable(int shift) {
    constexpr uint32_t kSmall[8] = {0, 0x3B00, 0x3B80, 0x3BC0, 0x3C00, 0x3C20, 0x3C40, 0x3C60};  // times 2^-9
    for (uint32_t code = 0; code < 128; ++code) {
      const uint32_t bits = code < 8 ? kSmall[code] : code == 127 ? 0x7FC0 : (code << 4) + 0x3C00;
      bytes[code] = static_cast<uint8_t>(bits >> shift);
    }
  }
};
inline constexpr ByteTable kHighBytes(8), kLowBytes(0);

struct ComputeVbmi : ComputeBf16 {
  using V = Avx512Vbmi;
  static constexpr int kKeyVectors = 2, kValueVectors = 4;

  /// Elements [begin, begin + 64) of a row, in the order order_depth() gives queries. Zeros beyond its end.
  template <bool kWhole>
  TILEWISE_INLINE static void load_key(F (&out)[kKeyVectors], const E4m3* row, int64_t begin, int64_t size) {
    const __m512i codes = load_codes(row, begin, kWhole ? begin + 64 : size);
    widen(out[0], out[1], codes);
  }

  /// Of a bf16 row's 64 elements, four at a time: 0-7, 16-23, ... and the others.
  TILEWISE_INLINE static void order_depth(float* units) {
    const __m512i a = _mm512_castps_si512(V::load(units)), b = _mm512_castps_si512(V::load(units + V::kLanes));
    const __m512i first = _mm512_setr_epi64(0, 1, 4, 5, 8, 9, 12, 13);
    const __m512i second = _mm512_setr_epi64(2, 3, 6, 7, 10, 11, 14, 15);
    V::store(units, _mm512_castsi512_ps(_mm512_permutex2var_epi64(a, first, b)));
    V::store(units + V::kLanes, _mm512_castsi512_ps(_mm512_permutex2var_epi64(a, second, b)));
  }

  /// Pairs of columns [begin, begin + 64) of two rows (null: zeros): vector i has columns 4 i to 4 i + 3 of each 16.
  template <class In>
  TILEWISE_INLINE static void load_shuffled(F (&out)[kValueVectors], const In* even, const In* odd, int64_t begin,
                                            int64_t size) {
    const __m512i a = load_codes(even, begin, size);
    const __m512i b = odd ? load_codes(odd, begin, size) : _mm512_setzero_si512();
    widen(out[0], out[1], _mm512_unpacklo_epi8(a, b));
    widen(out[2], out[3], _mm512_unpackhi_epi8(a, b));
  }

  /// Orders 64 floats of shuffled columns.
  TILEWISE_INLINE static void order_row(float* columns) {
    F in[4], half[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) in[i] = V::load(columns + i * V::kLanes);
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {  // quarters 0 and 2, then 1 and 3, of vectors 2 i and 2 i + 1
      half[2 * i] = _mm512_shuffle_f32x4(in[2 * i], in[2 * i + 1], 0x88);
      half[2 * i + 1] = _mm512_shuffle_f32x4(in[2 * i], in[2 * i + 1], 0xDD);
    }
    V::store(columns, _mm512_shuffle_f32x4(half[0], half[2], 0x88));
    V::store(columns + V::kLanes, _mm512_shuffle_f32x4(half[1], half[3], 0x88));
    V::store(columns + 2 * V::kLanes, _mm512_shuffle_f32x4(half[0], half[2], 0xDD));
    V::store(columns + 3 * V::kLanes, _mm512_shuffle_f32x4(half[1], half[3], 0xDD));
  }

 private:
  TILEWISE_INLINE static __m512i load_codes(const E4m3* row, int64_t begin, int64_t size) {
    const int64_t left = size - begin;
    if (left >= 64) return _mm512_loadu_si512(row + begin);
    return _mm512_maskz_loadu_epi8((uint64_t{1} << left) - 1, row + begin);
  }

  /// 64 numbers as bf16: of each 16 the first 8, and the others.
  TILEWISE_INLINE static void widen(F& first, F& second, __m512i codes) {
    const __m512i low =
        _mm512_permutex2var_epi8(_mm512_load_si512(kLowBytes.bytes), codes, _mm512_load_si512(kLowBytes.bytes + 64));
    const __m512i magnitude =
        _mm512_permutex2var_epi8(_mm512_load_si512(kHighBytes.bytes), codes, _mm512_load_si512(kHighBytes.bytes + 64));
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
    const __m512i high = _mm512_ternarylogic_epi32(magnitude, codes, sign, 0xF8);  // magnitude | (codes & sign)
    first = _mm512_castsi512_ps(_mm512_unpacklo_epi8(low, high));
    second = _mm512_castsi512_ps(_mm512_unpackhi_epi8(low, high));
  }
};

}  // namespace tilewise::backends::cpu
