// Products of bf16 pairs with vdpbf16ps: one unit is two elements adjacent along K.
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/math.h"
#include "backends/cpu/isa/pack.h"
#include "backends/cpu/isa/simd_avx512.h"

namespace tilewise::backends::cpu {

/// A type of its own, so that templates compiled with this set's flags have symbols of their own.
struct Avx512Bf16 : Avx512 {};

struct ComputeBf16 {
  using V = Avx512Bf16;
  using F = V::F;
  static constexpr int kPair = 2;
  static constexpr int kKeyVectors = 1, kValueVectors = kPair;  // that decoding loads at once
  static constexpr int kDepthUnits = 1;
  static constexpr int kRowPadding = 0;
  static constexpr int64_t kForwardKeys = 128;
  static constexpr int64_t kForwardRows = 4 * V::kTileRows;
  static constexpr int64_t kBackwardKeys = 256;
  static constexpr int64_t kBackwardRows = 16 * V::kTileRows;
  static constexpr int32_t kMaxRows = 256;

  /// What a task holds while it multiplies; nothing here (compare compute_amx.h).
  struct Session {};

  template <class In>
  static constexpr Precision precision() {
    return Precision::low;
  }
  /// Whether decoding reads keys and values in fp8 beside queries in In.
  template <class In>
  static constexpr bool decodes_fp8() {
    return true;
  }

  TILEWISE_INLINE static F dot(F sum, F a, F b) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }

  static void multiply(int64_t rows, int64_t columns, int64_t depth, const float* a, int64_t lda, const float* b,
                       int64_t panel_stride, float* c, int64_t ldc, bool accumulate) {
    cpu::multiply<ComputeBf16>(rows, columns, depth, a, lda, b, panel_stride, c, ldc, accumulate);
  }

  TILEWISE_INLINE static F load_units(const Bf16* p) { return _mm512_castsi512_ps(_mm512_loadu_si512(p)); }

  /// 32 numbers that bf16 holds exactly: but for two kinds, which are looked up, those of 120 exponents further down.
  TILEWISE_INLINE static F load_units(const E4m3* p) {
    const __m512i code = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    const __m512i magnitude = _mm512_and_si512(_mm512_slli_epi16(code, 4), _mm512_set1_epi16(0x07F0));
    const __m512i above = _mm512_sub_epi16(magnitude, _mm512_set1_epi16(0x0080));         // below 2^-6 it wraps around
    const __mmask32 special = _mm512_cmpgt_epu16_mask(above, _mm512_set1_epi16(0x0760));  // NaN: 0x0770
    const __m512i normal = _mm512_add_epi16(above, _mm512_set1_epi16(0x3C80));
    // Of the codes' five low bits: 0 to 7 times 2^-9, and NaN last.
    const __m512i table = _mm512_setr_epi64(0x3BC03B803B000000, 0x3C603C403C203C00, 0, 0, 0, 0, 0, 0x7FC0000000000000);
    const __m512i bits = _mm512_mask_permutexvar_epi16(normal, special, code, table);
    const __m512i sign = _mm512_set1_epi16(static_cast<short>(0x8000));
    constexpr int kFirstOrBoth = 0xF8;  // a | (b & c)
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(bits, code, sign, kFirstOrBoth));
  }

  /// One vector of a row, whose end is not asked for where every vector is whole.
  template <bool kWhole, class In>
  TILEWISE_INLINE static void load_key(F (&out)[kKeyVectors], const In* row, int64_t begin, int64_t size) {
    out[0] = kWhole ? load_units(row + begin) : cpu::load_units<ComputeBf16>(row, begin, size);
  }
  TILEWISE_INLINE static void order_depth(float*) {}

  /// Elements [begin, begin + 32) of two adjacent rows, interleaved: columns of a B operand.
  template <class In>
  TILEWISE_INLINE static void load_paired(F (&out)[kPair], const In* row, int64_t stride, int64_t rows_left,
                                          int64_t begin, int64_t size) {
    load_shuffled(out, rows_left > 0 ? row : nullptr, rows_left > 1 ? row + stride : nullptr, begin, size);
    order_columns(out[0], out[1]);
  }

  /// The same of any two rows (null: zeros) with columns in the order two cheap shuffles leave them: 0-3, 8-11,
  /// 16-19, 24-27 and the others. order_columns() puts that right; a sum over rows may wait for its end.
  template <class In>
  TILEWISE_INLINE static void load_shuffled(F (&out)[kPair], const In* even, const In* odd, int64_t begin,
                                            int64_t size) {
    shuffle(out, even ? cpu::load_units<ComputeBf16>(even, begin, size) : V::zero(),
            odd ? cpu::load_units<ComputeBf16>(odd, begin, size) : V::zero());
  }

  /// Orders 32 floats of shuffled columns.
  TILEWISE_INLINE static void order_row(float* columns) {
    F low = V::load(columns), high = V::load(columns + V::kLanes);
    order_columns(low, high);
    V::store(columns, low);
    V::store(columns + V::kLanes, high);
  }

  /// Columns [j, j + 32) of two adjacent depth rows of a B operand, from fp32; null: zeros.
  TILEWISE_INLINE static void pair_columns(F (&out)[kPair], const float* even, const float* odd) {
    interleave(out, even ? narrow(V::load(even), V::load(even + V::kLanes)) : V::zero(),
               odd ? narrow(V::load(odd), V::load(odd + V::kLanes)) : V::zero());
  }

  TILEWISE_INLINE static void store_row(float* row, int64_t j, F x0, F x1) { V::store(row + j / 2, narrow(x0, x1)); }

  /// A sum of what store_row() stores.
  TILEWISE_INLINE static F add_rounded(F sum, F x0, F x1) {
    const __m512i ones = _mm512_set1_epi16(0x3F80);
    return dot(sum, narrow(x0, x1), _mm512_castsi512_ps(ones));
  }

  TILEWISE_INLINE static void keep_row(float* units, const uint16_t* draws, uint32_t threshold) {
    const __m512i d = _mm512_loadu_si512(draws);
    const __mmask32 keep = _mm512_cmpge_epu16_mask(d, _mm512_set1_epi16(static_cast<short>(threshold)));
    V::store(units, _mm512_castsi512_ps(_mm512_maskz_mov_epi16(keep, _mm512_castps_si512(V::load(units)))));
  }

 private:
  /// 32 bf16 in order; the instruction's second operand fills the low half.
  TILEWISE_INLINE static F narrow(F low, F high) { return reinterpret_cast<F>(_mm512_cvtne2ps_pbh(high, low)); }

  TILEWISE_INLINE static void interleave(F (&out)[kPair], F even, F odd) {
    shuffle(out, even, odd);
    order_columns(out[0], out[1]);
  }

  TILEWISE_INLINE static void shuffle(F (&out)[kPair], F even, F odd) {
    const __m512i a = _mm512_castps_si512(even), b = _mm512_castps_si512(odd);
    out[0] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(a, b));
    out[1] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(a, b));
  }

  /// Quarters alternate between the two vectors.
  TILEWISE_INLINE static void order_columns(F& low, F& high) {
    const __m512i a = _mm512_castps_si512(low), b = _mm512_castps_si512(high);
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    low = _mm512_castsi512_ps(_mm512_permutex2var_epi64(a, first, b));
    high = _mm512_castsi512_ps(_mm512_permutex2var_epi64(a, second, b));
  }
};

}  // namespace tilewise::backends::cpu
