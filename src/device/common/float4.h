// fp4 e2m1 (0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives) to and from f32, and where its elements lie: two a byte,
// the first in the low half. Independent of the machine's floating-point mode.
#pragma once

#include <stdint.h>

namespace tilewise::device {

constexpr float kLargestE2m1 = 6.0f;

/// Of the low four bits. Exact.
constexpr float e2m1_to_float(uint8_t code) {
  const uint32_t sign = (uint32_t{code} & 8u) << 28;
  const uint32_t magnitude = uint32_t{code} & 7u;
  if (magnitude < 2) return __builtin_bit_cast(float, sign | (magnitude == 0 ? 0u : 0x3F000000u));
  return __builtin_bit_cast(float, sign | ((magnitude << 22) + (126u << 23)));
}

/// To nearest even; beyond ±6 to ±6, infinities too. A NaN, which the format has not, becomes 0: its scale says so.
constexpr uint8_t float_to_e2m1(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t sign = (bits >> 28) & 8u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return 0;
  if (magnitude >= 0x40C00000u) return static_cast<uint8_t>(sign | 7u);  // 6
  if (magnitude <= 0x3E800000u) return static_cast<uint8_t>(sign);       // up to 0.25, a tie
  if (magnitude < 0x3F400000u) return static_cast<uint8_t>(sign | 1u);   // below 0.75, a tie that 1 gets
  // From there on a code is its upper bits, in steps of half the power of two; 0.75 and what follows round up to 1.
  if (magnitude < 0x3F800000u) return static_cast<uint8_t>(sign | 2u);
  const uint32_t kept = magnitude - (126u << 23);
  return static_cast<uint8_t>(sign | ((kept + ((1u << 21) - 1u) + ((kept >> 22) & 1u)) >> 22));
}

/// Element `index` of a row that starts at `bytes`.
constexpr uint8_t e2m1_at(const uint8_t* bytes, int64_t index) {
  return static_cast<uint8_t>(static_cast<uint32_t>(bytes[index >> 1]) >> (4 * (index & 1)) & 15u);
}

/// Leaves the other element of its byte as it is.
constexpr void set_e2m1(uint8_t* bytes, int64_t index, uint8_t code) {
  const uint32_t shift = 4 * static_cast<uint32_t>(index & 1);
  const uint32_t rest = uint32_t{bytes[index >> 1]} & ~(15u << shift);
  bytes[index >> 1] = static_cast<uint8_t>(rest | (uint32_t{code} & 15u) << shift);
}

}  // namespace tilewise::device
