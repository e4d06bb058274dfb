// From elements as they lie in memory to those of tiles: as they are, or fp8 e4m3 widened to 16 bits, exactly. And
// back.
#pragma once

#include "device/common/float8.h"
#include "device/tile/element.h"

namespace tilewise::device {

/// An e4m3 byte as a float. Its bits, moved to the top of a float's exponent and fraction, are 2^120 too small.
TILEWISE_INLINE float widen_e4m3(uint32_t byte) {
  const uint32_t magnitude = byte & 0x7Fu;
  const float value = __builtin_bit_cast(float, (byte & 0x80u) << 24 | magnitude << 20) * 0x1p120f;
  return magnitude == 0x7Fu ? __builtin_bit_cast(float, 0x7FC00000u) : value;
}

/// Runs of kElements elements of a row: how they lie in memory, and from there to 16-bit elements of type kTo.
template <class Machine, int kFrom, int kTo, int kElements>
struct Widen {
  static_assert(kFrom == kTo, "only fp8 is widened");
  using Run = Choose<kElements == 4, HalfChunk, Chunk>;
  static constexpr int kElementBits = 16;
  TILEWISE_INLINE static Run widen(const Run& run) { return run; }
};

template <class Machine, int kTo, int kElements>
struct Widen<Machine, kE4m3, kTo, kElements> {
  struct alignas(kElements) Run {
    uint32_t word[kElements / 4];
  };
  using Wide = Choose<kElements == 4, HalfChunk, Chunk>;
  static constexpr int kElementBits = 8;
  TILEWISE_INLINE static Wide widen(const Run& run) {
    Wide wide;
    TILEWISE_UNROLL
    for (int i = 0; i < kElements / 2; ++i) {
      const uint32_t two = run.word[i / 2] >> (16 * (i % 2));
      wide.word[i] = Machine::template pack<kTo>(widen_e4m3(two & 0xFFu), widen_e4m3(two >> 8 & 0xFFu));
    }
    return wide;
  }
};

/// Two e4m3 bytes, the upper ones of halves, to 16-bit elements at once: a byte's exponent and fraction, moved to where
/// those of the wider type begin, are a power of two too small. NaNs come apart.
template <class Machine, int kTo>
struct WidenE4m3 {
  TILEWISE_INLINE static uint32_t widen_pair(uint32_t pair) {
    constexpr int kShift = kTo == kBf16 ? 4 : 1, kExponent = kTo == kBf16 ? 120 : 8;
    const uint32_t magnitude = (pair & 0x7F007F00u) >> kShift;
    return Machine::template scale_pair<kTo, kExponent>((pair & 0x80008000u) | magnitude);
  }
  /// The upper bit of each byte that is a NaN, which has all lower bits.
  TILEWISE_INLINE static uint32_t nans(uint32_t bytes) { return ((bytes & 0x7F7F7F7Fu) + 0x01010101u) & 0x80808080u; }
  /// All bits of the exponent, and the upper one of the fraction, where the upper bit of a half word is set.
  TILEWISE_INLINE static uint32_t nan_pair(uint32_t pair) { return pair - (pair >> (kTo == kBf16 ? 9 : 6)); }
};

/// 16 e4m3 bytes as two chunks of 16-bit elements.
template <class Machine, int kTo>
struct WideRun : private WidenE4m3<Machine, kTo> {
  using WidenE4m3<Machine, kTo>::widen_pair, WidenE4m3<Machine, kTo>::nans, WidenE4m3<Machine, kTo>::nan_pair;
  Chunk first, second;

  TILEWISE_INLINE explicit WideRun(const Chunk& bytes) {
    TILEWISE_UNROLL
    for (int i = 0; i < 4; ++i) {
      Chunk& to = i < 2 ? first : second;
      to.word[i % 2 * 2] = widen_pair(Machine::template spread_bytes<0>(bytes.word[i]));
      to.word[i % 2 * 2 + 1] = widen_pair(Machine::template spread_bytes<2>(bytes.word[i]));
    }
    if (nans(bytes.word[0]) | nans(bytes.word[1]) | nans(bytes.word[2]) | nans(bytes.word[3])) {
      TILEWISE_UNROLL
      for (int i = 0; i < 4; ++i) {
        Chunk& to = i < 2 ? first : second;
        to.word[i % 2 * 2] |= nan_pair(Machine::template spread_bytes<0>(nans(bytes.word[i])));
        to.word[i % 2 * 2 + 1] |= nan_pair(Machine::template spread_bytes<2>(nans(bytes.word[i])));
      }
    }
  }
};

/// Two floats as e4m3 bytes, the first one low: see float_to_e4m3().
template <class Machine>
TILEWISE_INLINE uint32_t pack_e4m3(float low, float high) {
  if constexpr (requires { Machine::pack_e4m3(low, high); }) {
    return Machine::pack_e4m3(low, high);
  } else {
    return float_to_e4m3(low) | static_cast<uint32_t>(float_to_e4m3(high)) << 8;
  }
}

}  // namespace tilewise::device
