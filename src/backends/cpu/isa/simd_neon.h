// NEON vectors of AArch64 behind the names of simd_avx512.h.
#pragma once

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/cpu/isa/elements.h"

namespace tilewise::backends::cpu {

struct Neon {
  using F = float32x4_t;
  using I = int32x4_t;
  using M = uint32x4_t;  // all bits of a lane, or none
  using Real = float;
  static constexpr int kLanes = 4;
  static constexpr int kPanelVectors = 4;  // 6 x 4 accumulators + 4 + 1 of 32 registers
  static constexpr int kTileRows = 6;

  TILEWISE_INLINE static F zero() { return vdupq_n_f32(0); }
  TILEWISE_INLINE static F set1(float x) { return vdupq_n_f32(x); }
  TILEWISE_INLINE static F load(const float* p) { return vld1q_f32(p); }
  TILEWISE_INLINE static void store(float* p, F x) { vst1q_f32(p, x); }
  TILEWISE_INLINE static M first(int64_t n) {
    const int32_t count = static_cast<int32_t>(n >= kLanes ? kLanes : n <= 0 ? 0 : n);
    return vcgtq_s32(vdupq_n_s32(count), I{0, 1, 2, 3});
  }
  TILEWISE_INLINE static F add(F a, F b) { return vaddq_f32(a, b); }
  TILEWISE_INLINE static F sub(F a, F b) { return vsubq_f32(a, b); }
  TILEWISE_INLINE static F mul(F a, F b) { return vmulq_f32(a, b); }
  TILEWISE_INLINE static F div(F a, F b) { return vdivq_f32(a, b); }
  TILEWISE_INLINE static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  TILEWISE_INLINE static F fms(F a, F b, F c) { return vfmaq_f32(vnegq_f32(c), a, b); }
  /// The second operand where either is NaN, as on x86: NEON's own would keep the first one's.
  TILEWISE_INLINE static F max(F a, F b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  TILEWISE_INLINE static F min(F a, F b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
  TILEWISE_INLINE static F abs(F a) { return vabsq_f32(a); }
  TILEWISE_INLINE static M greater(F a, F b) { return vcgtq_f32(a, b); }
  TILEWISE_INLINE static F select(M m, F yes, F no) { return vbslq_f32(m, yes, no); }
  TILEWISE_INLINE static bool any(M m) { return vmaxvq_u32(m) != 0; }
  TILEWISE_INLINE static float reduce_add(F a) { return (a[0] + a[2]) + (a[1] + a[3]); }
  TILEWISE_INLINE static float reduce_max(F a) {
    const float x = a[0] > a[2] ? a[0] : a[2], y = a[1] > a[3] ? a[1] : a[3];
    return x > y ? x : y;
  }
  TILEWISE_INLINE static F iota() { return F{0, 1, 2, 3}; }
  TILEWISE_INLINE static M at_least_u16(const uint16_t* draws, uint32_t threshold) {
    return vcgeq_u32(vmovl_u16(vld1_u16(draws)), vdupq_n_u32(threshold));
  }
  /// As simd_avx2.h.
  TILEWISE_INLINE static F scale(F x, F n) {
    return vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32(vreinterpretq_s32_f32(n), 23)));
  }
  // e^x of kLowest and below is 0, of kHighest and above infinity: 2^-127 and 2^128 as scale() has them.
  static constexpr bool kSplitsPowers = false;
  static constexpr float kLowest = -88.1f, kHighest = 89.0f, kRounder = 0x1.8p23f + 127.0f;

  TILEWISE_INLINE static F load(const Bf16* p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p)), 16));
  }
  TILEWISE_INLINE static F load(const F16* p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p))));
  }
  TILEWISE_INLINE static F load(const E4m3* p) {
    uint32_t word;
    __builtin_memcpy(&word, p, sizeof word);
    return widen_low(vreinterpret_s8_u32(vdup_n_u32(word)));
  }
  /// The first four codes as numbers: by way of fp16, whose exponents start eight lower; NaN has no other number's
  /// pattern there.
  TILEWISE_INLINE static F widen_low(int8x8_t codes) {
    const uint16x8_t code = vreinterpretq_u16_s16(vmovl_s8(codes));
    const uint16x4_t half = vand_u16(vshl_n_u16(vget_low_u16(code), 7), vdup_n_u16(0xBF80));
    const uint16x4_t nan = vceq_u16(vorr_u16(half, vdup_n_u16(0x8000)), vdup_n_u16(0xBF80));
    return vmulq_f32(vcvt_f32_f16(vreinterpret_f16_u16(vorr_u16(half, nan))), vdupq_n_f32(256.0f));
  }
  TILEWISE_INLINE static F load(const E8m0* p) {
    uint32_t word;
    __builtin_memcpy(&word, p, sizeof word);
    const uint32x4_t code = vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(word)))));
    const uint32x4_t least = vandq_u32(vceqzq_u32(code), vdupq_n_u32(0x00400000));
    const uint32x4_t nan = vandq_u32(vceqq_u32(code, vdupq_n_u32(255)), vdupq_n_u32(0x7FC00000));
    return vreinterpretq_f32_u32(vorrq_u32(vshlq_n_u32(code, 23), vorrq_u32(least, nan)));
  }
  /// 4 numbers of 2 bytes.
  TILEWISE_INLINE static F load(const E2m1* p) {
    uint16_t bytes;
    __builtin_memcpy(&bytes, p, sizeof bytes);
    uint16x8_t numbers[4];
    widen(vreinterpretq_u8_u16(vdupq_n_u16(bytes)), numbers);
    return vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(numbers[0]), 16));
  }
  /// 32 numbers of 16 bytes as bf16, in order: both bytes of each are looked up.
  TILEWISE_INLINE static void widen(uint8x16_t bytes, uint16x8_t (&numbers)[4]) {
    const uint8x16_t low = {0x00, 0x00, 0x80, 0xC0, 0x00, 0x40, 0x80, 0xC0,
                            0x00, 0x00, 0x80, 0xC0, 0x00, 0x40, 0x80, 0xC0};
    const uint8x16_t high = {0x00, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40,
                             0x80, 0xBF, 0xBF, 0xBF, 0xC0, 0xC0, 0xC0, 0xC0};
    const uint8x16_t even = vandq_u8(bytes, vdupq_n_u8(15)), odd = vshrq_n_u8(bytes, 4);
    const uint8x16_t codes[2] = {vzip1q_u8(even, odd), vzip2q_u8(even, odd)};
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const uint8x16_t l = vqtbl1q_u8(low, codes[i]), h = vqtbl1q_u8(high, codes[i]);
      numbers[2 * i] = vreinterpretq_u16_u8(vzip1q_u8(l, h));
      numbers[2 * i + 1] = vreinterpretq_u16_u8(vzip2q_u8(l, h));
    }
  }
  TILEWISE_INLINE static void store(Bf16* p, F x) {
    vst1_u16(reinterpret_cast<uint16_t*>(p), vshrn_n_u32(round_to_bf16(x), 16));
  }
  TILEWISE_INLINE static void store(F16* p, F x) {
    vst1_u16(reinterpret_cast<uint16_t*>(p), vreinterpret_u16_f16(vcvt_f16_f32(x)));
  }

  /// Lane i: the sum over r[i].
  TILEWISE_INLINE static F sum_each(F (&r)[kLanes]) {
    return vpaddq_f32(vpaddq_f32(r[0], r[1]), vpaddq_f32(r[2], r[3]));
  }

  /// Transposes a 4 x 4 block of 32-bit words held in rows.
  TILEWISE_INLINE static void transpose(F (&r)[kLanes]) {
    const F a = vzip1q_f32(r[0], r[2]), b = vzip2q_f32(r[0], r[2]);
    const F c = vzip1q_f32(r[1], r[3]), d = vzip2q_f32(r[1], r[3]);
    r[0] = vzip1q_f32(a, c);
    r[1] = vzip2q_f32(a, c);
    r[2] = vzip1q_f32(b, d);
    r[3] = vzip2q_f32(b, d);
  }

 private:
  /// bf16 bits in the high half of each word: nearest even, NaN kept quiet.
  TILEWISE_INLINE static uint32x4_t round_to_bf16(F x) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7FFF)), odd);
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    return vbslq_u32(vceqq_f32(x, x), rounded, quiet);
  }
};

}  // namespace tilewise::backends::cpu
