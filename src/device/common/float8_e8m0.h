// fp8 e8m0, the scale of microscaled blocks: 2^(byte - 127), no sign, no zero, byte 255 is NaN. Independent of the
// machine's floating-point mode.
#pragma once

#include <stdint.h>

namespace tilewise::device {

constexpr uint8_t kNanE8m0 = 255;

/// Exact: byte 0 is the subnormal 2^-127.
constexpr float e8m0_to_float(uint8_t value) {
  if (value == kNanE8m0) return __builtin_bit_cast(float, 0x7FC00000u);
  return __builtin_bit_cast(float, value == 0 ? 0x00400000u : uint32_t{value} << 23);
}

/// floor(log2(value)) of a positive, finite value.
constexpr int32_t floor_log2(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value) & 0x7FFFFFFFu;
  if (bits >= 0x00800000u) return static_cast<int32_t>(bits >> 23) - 127;
  int32_t exponent = -149;
  for (uint32_t rest = bits; rest > 1; rest >>= 1) ++exponent;
  return exponent;
}

/// 2^exponent, the exponent clamped to -127 and 127.
constexpr uint8_t e8m0_of_exponent(int32_t exponent) {
  return static_cast<uint8_t>((exponent < -127 ? -127 : exponent > 127 ? 127 : exponent) + 127);
}

/// The nearest power of two, 1.5 times one up; 0 is the least one. NaN, negative numbers and infinities are NaN.
constexpr uint8_t float_to_e8m0(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  if (bits == 0 || bits == 0x80000000u) return 0;
  if (bits >= 0x7F800000u) return kNanE8m0;  // a sign too
  const int32_t exponent = floor_log2(value);
  const float power = e8m0_to_float(e8m0_of_exponent(exponent));
  return e8m0_of_exponent(exponent + (exponent >= -127 && value >= 1.5f * power ? 1 : 0));
}

}  // namespace tilewise::device
