// Products of bf16 pairs with NEON's bfdot: one unit is two elements adjacent along K.
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/math.h"
#include "backends/cpu/isa/pack.h"
#include "backends/cpu/isa/simd_neon.h"

namespace tilewise::backends::cpu {

/// A type of its own, so that templates compiled with this set's flags have symbols of their own.
struct NeonBf16 : Neon {};

struct ComputeNeonBf16 {
  using V = NeonBf16;
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
    return vbfdotq_f32(sum, vreinterpretq_bf16_f32(a), vreinterpretq_bf16_f32(b));
  }

  static void multiply(int64_t rows, int64_t columns, int64_t depth, const float* a, int64_t lda, const float* b,
                       int64_t panel_stride, float* c, int64_t ldc, bool accumulate) {
    cpu::multiply<ComputeNeonBf16>(rows, columns, depth, a, lda, b, panel_stride, c, ldc, accumulate);
  }

  TILEWISE_INLINE static F load_units(const Bf16* p) {
    return vreinterpretq_f32_u16(vld1q_u16(reinterpret_cast<const uint16_t*>(p)));
  }
  /// Eight numbers that bf16 holds exactly.
  TILEWISE_INLINE static F load_units(const E4m3* p) {
    const int8x8_t codes = vld1_s8(reinterpret_cast<const int8_t*>(p));
    return narrow(V::widen_low(codes), V::widen_low(vext_s8(codes, codes, 4)));
  }

  /// One vector of a row, whose end is not asked for where every vector is whole.
  template <bool kWhole, class In>
  TILEWISE_INLINE static void load_key(F (&out)[kKeyVectors], const In* row, int64_t begin, int64_t size) {
    out[0] = kWhole ? load_units(row + begin) : cpu::load_units<ComputeNeonBf16>(row, begin, size);
  }
  TILEWISE_INLINE static void order_depth(float*) {}

  /// Elements [begin, begin + 8) of two adjacent rows, interleaved: columns of a B operand.
  template <class In>
  TILEWISE_INLINE static void load_paired(F (&out)[kPair], const In* row, int64_t stride, int64_t rows_left,
                                          int64_t begin, int64_t size) {
    load_shuffled(out, rows_left > 0 ? row : nullptr, rows_left > 1 ? row + stride : nullptr, begin, size);
  }

  /// The same of any two rows (null: zeros). NEON's zips leave columns in order (compare compute_bf16.h).
  template <class In>
  TILEWISE_INLINE static void load_shuffled(F (&out)[kPair], const In* even, const In* odd, int64_t begin,
                                            int64_t size) {
    interleave(out, even ? cpu::load_units<ComputeNeonBf16>(even, begin, size) : V::zero(),
               odd ? cpu::load_units<ComputeNeonBf16>(odd, begin, size) : V::zero());
  }
  TILEWISE_INLINE static void order_row(float*) {}

  /// Columns [j, j + 8) of two adjacent depth rows of a B operand, from fp32; null: zeros.
  TILEWISE_INLINE static void pair_columns(F (&out)[kPair], const float* even, const float* odd) {
    interleave(out, even ? narrow(V::load(even), V::load(even + V::kLanes)) : V::zero(),
               odd ? narrow(V::load(odd), V::load(odd + V::kLanes)) : V::zero());
  }

  TILEWISE_INLINE static void store_row(float* row, int64_t j, F x0, F x1) { V::store(row + j / 2, narrow(x0, x1)); }

  /// A sum of what store_row() stores.
  TILEWISE_INLINE static F add_rounded(F sum, F x0, F x1) {
    return dot(sum, narrow(x0, x1), vreinterpretq_f32_u16(vdupq_n_u16(0x3F80)));
  }

  TILEWISE_INLINE static void keep_row(float* units, const uint16_t* draws, uint32_t threshold) {
    const uint16x8_t keep = vcgeq_u16(vld1q_u16(draws), vdupq_n_u16(static_cast<uint16_t>(threshold)));
    V::store(units, vreinterpretq_f32_u16(vandq_u16(keep, vreinterpretq_u16_f32(V::load(units)))));
  }

 private:
  /// Eight bf16 in order.
  TILEWISE_INLINE static F narrow(F low, F high) {
    return vreinterpretq_f32_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(low), high));
  }

  TILEWISE_INLINE static void interleave(F (&out)[kPair], F even, F odd) {
    const uint16x8_t a = vreinterpretq_u16_f32(even), b = vreinterpretq_u16_f32(odd);
    out[0] = vreinterpretq_f32_u16(vzip1q_u16(a, b));
    out[1] = vreinterpretq_f32_u16(vzip2q_u16(a, b));
  }
};

}  // namespace tilewise::backends::cpu
