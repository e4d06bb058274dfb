// e2m1 numbers times a scale as 16-bit elements, by tables of bytes: a scale's eight products are worked out once for
// all elements that have it.
#pragma once

#include "device/tile/byte_numbers.h"
#include "device/tile/shared_tile.h"

namespace tilewise::device {

/// kSigned: scales may be negative. Scales are such that 16-bit elements hold the products exactly.
template <class Machine, int kElement, bool kSigned>
class TablesOfFours {
 public:
  TILEWISE_INLINE void fill(float scale) {
    constexpr float kNumbers[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    TILEWISE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const float* const four = kNumbers + 4 * i;
      const uint32_t low = pack_short<Machine, kElement>(four[0] * scale, four[1] * scale);
      const uint32_t high = pack_short<Machine, kElement>(four[2] * scale, four[3] * scale);
      lower_[i] = Machine::choose_bytes(low, high, 0x06040200u);
      upper_[i] = Machine::choose_bytes(low, high, 0x07050301u);
    }
  }

  /// The 8 numbers of a word, the lowest one first.
  TILEWISE_INLINE Chunk widened(uint32_t word) const {
    constexpr uint32_t kLowPair = 0x05010400u, kHighPair = 0x07030602u;
    uint32_t lower[2], upper[2];  // of even and of odd elements
    TILEWISE_UNROLL
    for (uint32_t odd = 0; odd < 2; ++odd) {
      const uint32_t which = word >> (4 * odd) & 0x07070707u, signs = word << (4 - 4 * odd) & 0x80808080u;
      lower[odd] = Machine::choose_bytes(lower_[0], lower_[1], which);
      const uint32_t magnitude = Machine::choose_bytes(upper_[0], upper_[1], which);
      upper[odd] = kSigned ? magnitude ^ signs : magnitude | signs;
    }
    Chunk to;
    TILEWISE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const uint32_t pair = i == 0 ? kLowPair : kHighPair;
      const uint32_t even = Machine::choose_bytes(lower[0], upper[0], pair);
      const uint32_t odd = Machine::choose_bytes(lower[1], upper[1], pair);
      to.word[2 * i] = Machine::low_halves(even, odd);
      to.word[2 * i + 1] = Machine::high_halves(even, odd);
    }
    return to;
  }

 private:
  uint32_t lower_[2], upper_[2];
};

}  // namespace tilewise::device
