// bf16 and f16 to and from f32 in integer arithmetic: round to nearest even, subnormals and
// infinities kept, NaN stays NaN. Independent of the machine's floating-point mode.
#pragma once

#include <stdint.h>

namespace tilewise::device {

constexpr float bf16_to_float(uint16_t value) { return __builtin_bit_cast(float, uint32_t{value} << 16); }

constexpr uint16_t float_to_bf16(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x0040u);  // quiet the NaN
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

constexpr float f16_to_float(uint16_t value) {
  const uint32_t sign = (uint32_t{value} & 0x8000u) << 16;
  uint32_t exponent = (uint32_t{value} >> 10) & 0x1Fu;
  uint32_t mantissa = uint32_t{value} & 0x03FFu;
  if (exponent == 0x1Fu) return __builtin_bit_cast(float, sign | 0x7F800000u | (mantissa << 13));
  if (exponent == 0) {
    if (mantissa == 0) return __builtin_bit_cast(float, sign);
    exponent = 1;
    for (; (mantissa & 0x0400u) == 0; mantissa <<= 1) --exponent;  // may wrap below 0: the sum comes out right
    mantissa &= 0x03FFu;
  }
  return __builtin_bit_cast(float, sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

constexpr uint16_t float_to_f16(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x01FFu));
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // 65520 and above: infinity
  if (magnitude < 0x33000000u) return static_cast<uint16_t>(sign);             // below 2^-25: zero
  // Normal numbers drop 13 bits; subnormal ones (below 2^-14) more, the implicit bit made explicit.
  const bool normal = magnitude >= 0x38800000u;
  const uint32_t shift = normal ? 13u : 126u - (magnitude >> 23);
  const uint32_t kept = normal ? magnitude - (112u << 23) : (magnitude & 0x007FFFFFu) | 0x00800000u;
  const uint32_t half = 1u << (shift - 1);
  return static_cast<uint16_t>(sign | ((kept + (half - 1) + ((kept >> shift) & 1u)) >> shift));
}

}  // namespace tilewise::device
