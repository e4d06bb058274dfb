// fp4 e2m1 widened to 16 bits in registers, times a scale: of e8m0 exactly in bf16 and rounded once in f16, which has
// 2^-24 at the least; of e4m3 exactly in both.
#pragma once

#include "device/common/float8_e8m0.h"
#include "device/tile/widen.h"

namespace tilewise::device {

/// Bits of an element, moved to where a wider type has its exponent's and fraction's, are 2^kExponent too small.
template <class Machine, int kTo>
struct WidenE2m1 {
  static constexpr int kExponent = kTo == kBf16 ? 126 : 14, kMostExponent = kTo == kBf16 ? 127 : 15;
  /// How much too small elements are whose scale is e4m3, which times 2^kExponent no number would hold.
  static constexpr float kFolded = 256.0f;

  /// What elements are multiplied with: 2^kMostExponent at most, and `rest` powers of two more.
  struct Factor {
    uint32_t pair;
    int32_t rest;
  };
  TILEWISE_INLINE static Factor factor_of_e8m0(uint8_t scale) {
    constexpr uint32_t kNan = kTo == kBf16 ? 0x7FC07FC0u : 0x7E007E00u;
    const int32_t exponent = scale - 127 + kExponent;
    if (scale == kNanE8m0) return {kNan, 0};
    return {power_of_two(minimum(exponent, kMostExponent)), maximum(exponent - kMostExponent, 0)};
  }
  TILEWISE_INLINE static Factor factor_of_e4m3(uint8_t scale) {
    constexpr float kScale = kTo == kBf16 ? 0x1p118f : 0x1p6f;  // 2^kExponent / kFolded
    const float factor = widen_e4m3(scale) * kScale;
    return {Machine::template pack<kTo>(factor, factor), 0};
  }
  /// What multiply() has left out where a scale is so large: 2^kMostExponent at a time. An infinity stays one.
  TILEWISE_INLINE static Factor next(const Factor& factor) {
    return {power_of_two(minimum(factor.rest, kMostExponent)), maximum(factor.rest - kMostExponent, 0)};
  }

  /// Elements `first`, 0 to 3, and first + 4 of eight, without their factor.
  TILEWISE_INLINE static uint32_t pair(uint32_t word, int first) {
    const int low = first % 2 * 4;
    const uint32_t own = first < 2 ? word : word >> 8;
    if constexpr (kTo == kBf16) {
      // A product is two shifts at once: copies of an element at the sign's place and at the exponent's don't overlap.
      return ((own & (0x000F000Fu << low)) * ((1u << (12 - low)) + (1u << (6 - low)))) & 0x81C081C0u;
    } else {
      return (own << (12 - low) & 0x80008000u) | (own << (9 - low) & 0x0E000E00u);
    }
  }
  TILEWISE_INLINE static uint32_t multiply(uint32_t pair, const Factor& factor) {
    return Machine::template multiply_pairs<kTo>(pair, factor.pair);
  }

 private:
  /// Twice. What is too small for the type is 0.
  TILEWISE_INLINE static uint32_t power_of_two(int32_t exponent) {
    constexpr int kFraction = kTo == kBf16 ? 7 : 10;
    const int32_t biased = exponent + kMostExponent, shift = maximum(biased, 1 - kFraction) + kFraction - 1;
    const uint32_t bits = biased > 0            ? static_cast<uint32_t>(biased) << kFraction
                          : biased > -kFraction ? 1u << shift % 32
                                                : 0u;
    return bits * 0x00010001u;
  }
};

}  // namespace tilewise::device
