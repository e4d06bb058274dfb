// fp8 e4m3 (e4m3fn: no infinities, NaN is 0x7F and 0xFF, the largest value is 448) to and from f32 in integer
// arithmetic. Independent of the machine's floating-point mode.
#pragma once

#include <stdint.h>

namespace tilewise::device {

constexpr float kLargestE4m3 = 448.0f;

/// Exact.
constexpr float e4m3_to_float(uint8_t value) {
  const uint32_t sign = (uint32_t{value} & 0x80u) << 24;
  const uint32_t magnitude = uint32_t{value} & 0x7Fu;
  if (magnitude == 0x7Fu) return __builtin_bit_cast(float, sign | 0x7FC00000u);
  if (magnitude < 8) {  // subnormal: a multiple of 2^-9
    const float scaled = static_cast<float>(magnitude) * 0.001953125f;
    return sign != 0 ? -scaled : scaled;
  }
  return __builtin_bit_cast(float, sign | ((magnitude << 20) + (120u << 23)));
}

/// To nearest even; beyond ±448 to ±448, infinities too. Any NaN becomes 0x7F: processors differ in the sign that a NaN
/// has after arithmetic, and caches are the same everywhere.
constexpr uint8_t float_to_e4m3(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return 0x7Fu;
  if (magnitude >= 0x43E00000u) return static_cast<uint8_t>(sign | 0x7Eu);  // 448
  if (magnitude < 0x3A800000u) return static_cast<uint8_t>(sign);           // below 2^-10, half the least
  // Normal numbers drop 20 bits; subnormal ones (below 2^-6) more, the implicit bit made explicit.
  const bool normal = magnitude >= 0x3C800000u;
  const uint32_t shift = normal ? 20u : 141u - (magnitude >> 23);
  const uint32_t kept = normal ? magnitude - (120u << 23) : (magnitude & 0x007FFFFFu) | 0x00800000u;
  const uint32_t half = 1u << (shift - 1);
  return static_cast<uint8_t>(sign | ((kept + (half - 1) + ((kept >> shift) & 1u)) >> shift));
}

}  // namespace tilewise::device
