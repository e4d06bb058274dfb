// fp8 e4m3 as gfx942 knows it (e4m3fnuz): its bias is one more, so that a byte is half of e4m3's, and its only NaN is
// the byte of e4m3's -0. Translation of e4m3 bytes, four a word.
#pragma once

#include <stdint.h>

namespace tilewise::device {

/// Bytes without their signs.
constexpr uint32_t magnitudes(uint32_t word) { return word & 0x7F7F7F7Fu; }

/// e4m3's NaNs, by their magnitudes, have the upper bits of their bytes set; other bits say nothing.
constexpr uint32_t e4m3_nans(uint32_t magnitude) { return magnitude + 0x01010101u; }

/// e4m3 bytes of which -0 has become 0.
constexpr uint32_t without_negative_zeros(uint32_t word, uint32_t magnitude) {
  return ((magnitude + 0x7F7F7F7Fu) & word) | magnitude;
}

/// Those whose NaNs have become e4m3fnuz's, too.
constexpr uint32_t with_fnuz_nans(uint32_t word) {
  const uint32_t nans = e4m3_nans(magnitudes(word)) & 0x80808080u;
  return (word & ~(nans - (nans >> 7))) | nans;
}

/// Exact, of an e4m3fnuz byte.
constexpr float fnuz_to_float(uint8_t value) {
  if (value == 0x80u) return __builtin_bit_cast(float, 0x7FC00000u);
  const uint32_t sign = (uint32_t{value} & 0x80u) << 24, magnitude = uint32_t{value} & 0x7Fu;
  if (magnitude < 8) {  // subnormal: a multiple of 2^-10
    const float scaled = static_cast<float>(magnitude) * 0.0009765625f;
    return sign != 0 ? -scaled : scaled;
  }
  return __builtin_bit_cast(float, sign | ((magnitude << 20) + (119u << 23)));
}

}  // namespace tilewise::device
