// From elements as they lie in memory to those of tiles: as they are, or fp8 e4m3 widened to 16 bits, exactly.
#pragma once

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

}  // namespace tilewise::device
