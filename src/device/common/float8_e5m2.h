// fp8 e5m2 (infinities and NaN as in f16, of which it is the upper byte; the largest finite value is 57344) to and from
// f32 in integer arithmetic. Independent of the machine's floating-point mode.
#pragma once

#include <stdint.h>

namespace tilewise::device {

constexpr float kLargestE5m2 = 57344.0f;

/// Exact.
constexpr float e5m2_to_float(uint8_t value) {
  const uint32_t sign = (uint32_t{value} & 0x80u) << 24;
  const uint32_t magnitude = uint32_t{value} & 0x7Fu;
  if (magnitude < 4) {  // subnormal: a multiple of 2^-16
    const float scaled = static_cast<float>(magnitude) * 0x1p-16f;
    return sign != 0 ? -scaled : scaled;
  }
  if (magnitude >= 0x7Cu) return __builtin_bit_cast(float, sign | 0x7F800000u | (magnitude & 3u) << 21);
  return __builtin_bit_cast(float, sign | ((magnitude << 21) + (112u << 23)));
}

/// To nearest even; beyond ±57344 to ±57344, infinities too. Any NaN becomes 0x7F, as of e4m3.
constexpr uint8_t float_to_e5m2(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return 0x7Fu;
  if (magnitude >= 0x47600000u) return static_cast<uint8_t>(sign | 0x7Bu);  // 57344
  if (magnitude < 0x37000000u) return static_cast<uint8_t>(sign);           // below 2^-17, half the least
  // Normal numbers drop 21 bits; subnormal ones (below 2^-14) more, the implicit bit made explicit.
  const bool normal = magnitude >= 0x38800000u;
  const uint32_t shift = normal ? 21u : 134u - (magnitude >> 23);
  const uint32_t kept = normal ? magnitude - (112u << 23) : (magnitude & 0x007FFFFFu) | 0x00800000u;
  const uint32_t half = 1u << (shift - 1);
  return static_cast<uint8_t>(sign | ((kept + (half - 1) + ((kept >> shift) & 1u)) >> shift));
}

}  // namespace tilewise::device
