// The scale that a block of numbers gets, and what stands for it in memory. One rule each, in f32, for the reference
// and for kernels of every machine. Wants divisions that round as IEEE 754 says and subnormal numbers that are kept.
#pragma once

#include <stdint.h>

#include "device/common/float4.h"
#include "device/common/float8.h"
#include "device/common/float8_e8m0.h"

namespace tilewise::device {

/// Element types of scales.
enum ScaleType : int32_t { kScaleF32 = 0, kScaleE8m0 = 1, kScaleE4m3 = 2 };

/// What a format says of its blocks.
struct BlockRule {
  bool e2m1;           // elements are e2m1, else e4m3
  int32_t scale_type;  // ScaleType
  bool power_of_two;
};

constexpr float kLeastScale = 0x1p-126f;

/// The least power of two that is no smaller than a positive, normal number.
constexpr float power_of_two_above(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value), power = bits & 0x7F800000u;
  return __builtin_bit_cast(float, power == bits ? power : power + 0x00800000u);
}

/// An f32 scale: of fp8 blocks.
constexpr float real_scale(float amax, bool power_of_two) {
  if (amax == 0.0f) return 1.0f;
  const float wanted = amax / kLargestE4m3, scale = wanted < kLeastScale ? kLeastScale : wanted;
  return power_of_two ? power_of_two_above(scale) : scale;
}

/// The factor of a whole tensor in nvfp4: its largest block scale is 448.
constexpr float global_scale(float amax) {
  if (amax == 0.0f) return 1.0f;
  const float wanted = amax / (kLargestE2m1 * kLargestE4m3);
  return wanted < kLeastScale ? kLeastScale : wanted;
}

/// The byte of nvfp4's block scale: 448 at most, 2^-9 at least.
constexpr uint8_t e4m3_scale(float amax, float global) {
  const uint8_t byte = float_to_e4m3(amax / kLargestE2m1 / global);
  return byte == 0 ? uint8_t{1} : byte;
}

/// The byte of an OCP MX scale: 2^(floor(log2(amax)) - emax).
constexpr uint8_t e8m0_scale(float amax, bool e2m1) {
  constexpr int32_t kEmaxE2m1 = 2, kEmaxE4m3 = 8;
  return amax == 0.0f ? uint8_t{0} : e8m0_of_exponent(floor_log2(amax) - (e2m1 ? kEmaxE2m1 : kEmaxE4m3));
}

/// A block's scale as its format stores it, as bits: of an f32 those of the number. amax is that of its finite numbers.
/// Where elements can be no NaN, the scale of a block that has one is.
constexpr uint32_t scale_bits(const BlockRule& rule, float amax, bool nan, float global) {
  if (rule.scale_type == kScaleE8m0) {
    if (nan && rule.e2m1) return kNanE8m0;
    return rule.power_of_two ? float_to_e8m0(real_scale(amax, true)) : e8m0_scale(amax, rule.e2m1);
  }
  if (rule.scale_type == kScaleE4m3) return nan ? uint8_t{0x7F} : e4m3_scale(amax, global);
  return __builtin_bit_cast(uint32_t, real_scale(amax, rule.power_of_two));
}

/// The number that they stand for.
constexpr float scale_value(int32_t scale_type, uint32_t bits) {
  const auto byte = static_cast<uint8_t>(bits);
  return scale_type == kScaleF32    ? __builtin_bit_cast(float, bits)
         : scale_type == kScaleE8m0 ? e8m0_to_float(byte)
                                    : e4m3_to_float(byte);
}

}  // namespace tilewise::device
