// Runs of an operand's elements on their way from memory to shared tiles: as they lie, as floats, and as 16-bit
// elements.
#pragma once

#include "device/common/float8_e8m0.h"
#include "device/product/config.h"
#include "device/tile/byte_numbers.h"

namespace tilewise::device {

/// kCount elements of ProductType kType as they lie in memory.
template <int kType, int kCount>
struct ElementRun {
  static constexpr int kBits = bits_of_product_type(kType), kWords = ceil_div(kCount * kBits, 32);
  uint32_t word[kWords];

  TILEWISE_INLINE uint32_t bits(int i) const {
    constexpr uint32_t kMask = kBits == 32 ? ~0u : (1u << (kBits % 32)) - 1;
    return word[i * kBits / 32] >> (i * kBits % 32) & kMask;
  }

  /// Of 4 bits a mantissa bit, two of the exponent and the sign: moved to a float's places they are 2^126 too small.
  TILEWISE_INLINE float number(int i) const {
    const uint32_t x = bits(i);
    if constexpr (kType == kProductF32) {
      return __builtin_bit_cast(float, x);
    } else if constexpr (kType == kProductE4m3) {
      return widen_e4m3(x);
    } else if constexpr (kType == kProductE2m1) {
      return __builtin_bit_cast(float, (x & 8u) << 28 | (x & 7u) << 22) * 0x1p126f;
    } else {
      return element_to_float<kType>(x);
    }
  }

  /// From `at` on. kVectors: all at once, which must be aligned to their size, or 16 bytes of it.
  template <class Machine, bool kVectors>
  TILEWISE_INLINE static ElementRun load(const uint8_t* at) {
    if constexpr (!kVectors) return load_some<Machine, false>(at, kCount);
    ElementRun run;
    constexpr int kAtOnce = minimum(kWords, 4);
    TILEWISE_UNROLL
    for (int first = 0; first < kWords; first += kAtOnce) {
      const auto part = Machine::load_global(reinterpret_cast<const WordRun<kAtOnce>*>(at) + first / kAtOnce);
      TILEWISE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) run.word[first + i] = part.word[i];
    }
    return run;
  }

  /// The same of the first `left` elements, and zeros. kVectors: all or none.
  template <class Machine, bool kVectors>
  TILEWISE_INLINE static ElementRun load_some(const uint8_t* at, int64_t left) {
    if constexpr (kVectors) {
      if (left > 0) return load<Machine, true>(at);
      return ElementRun{};
    } else {
      ElementRun run{};
      TILEWISE_UNROLL
      for (int i = 0; i < kCount; ++i) {
        uint32_t x = 0;
        if (i < left) x = load_element<Machine>(at, i);
        run.word[i * kBits / 32] |= x << (i * kBits % 32);
      }
      return run;
    }
  }

 private:
  template <class Machine>
  TILEWISE_INLINE static uint32_t load_element(const uint8_t* at, int i) {
    if constexpr (kBits == 32) {
      return Machine::load_global(reinterpret_cast<const uint32_t*>(at) + i);
    } else if constexpr (kBits == 16) {
      return Machine::load_global(reinterpret_cast<const uint16_t*>(at) + i);
    } else if constexpr (kBits == 8) {
      return Machine::load_global(at + i);
    } else {
      return uint32_t{Machine::load_global(at + i / 2)} >> (4 * (i % 2)) & 15u;
    }
  }
};

/// What an e2m1's mantissa bit, two bits of its exponent and its sign, moved to a 16-bit type's places, want to be
/// multiplied by.
constexpr float fours_factor(int element) { return element == kBf16 ? 0x1p126f : 0x1p14f; }

/// The 8 e2m1 elements of a word as such, in the order 0, 4, 1, 5, 2, 6, 3, 7: pairs that are moved at once.
template <int kTo>
TILEWISE_INLINE Chunk pairs_of_fours(uint32_t word) {
  Chunk chunk;
  TILEWISE_UNROLL
  for (int i = 0; i < 4; ++i) {
    if constexpr (kTo == kBf16) {
      // A product with two powers of two moves sign and magnitude at once, 3 instructions for 4; what else is left of
      // both copies, which don't overlap, is cut.
      const uint32_t down = i % 2 != 0 ? 4u : 0u, pair = word >> (8 * (i / 2)) & 0x000F000Fu << down;
      chunk.word[i] = pair * (0x1040u >> down) & 0x81C081C0u;
    } else {
      const uint32_t moved = word << (12 - 4 * i);
      chunk.word[i] = (moved & 0x80008000u) | (moved & 0x70007000u) >> 3;
    }
  }
  return chunk;
}

/// A scale of ScaleType kType as a float.
template <class Machine, int kType>
TILEWISE_INLINE float load_scale(const void* scales, int64_t index) {
  if constexpr (kType == kScaleF32) {
    return Machine::load_global(static_cast<const float*>(scales) + index);
  } else {
    const uint8_t byte = Machine::load_global(static_cast<const uint8_t*>(scales) + index);
    return kType == kScaleE8m0 ? e8m0_to_float(byte) : widen_e4m3(byte);
  }
}

/// 8 adjacent elements of a run, from kFirst on.
template <class Machine, int kFirst, int kType, int kCount>
TILEWISE_INLINE void numbers_of(float (&to)[8], const ElementRun<kType, kCount>& run) {
  if constexpr (kType == kProductE4m3) {
    numbers_of_e4m3<Machine>(to, {run.word[kFirst / 4], run.word[kFirst / 4 + 1]});
  } else if constexpr (kType == kProductE2m1 && requires { Machine::choose_bytes(0u, 0u, 0u); }) {
    numbers_of_e2m1<Machine>(to, run.word[kFirst / 8]);
  } else {
    TILEWISE_UNROLL
    for (int i = 0; i < 8; ++i) to[i] = run.number(kFirst + i);
  }
}

/// The same times a scale of ScaleType kScale and rounded to 16-bit elements of type kTo.
template <class Machine, int kTo, bool kScaled, int kScale, int kFirst, int kType, int kCount>
TILEWISE_INLINE Chunk chunk_of(const ElementRun<kType, kCount>& run, float scale) {
  // Of fp8, and of fp4 times a scale of few bits, no more are left than a bf16 has.
  constexpr bool kShort = (kType == kProductE4m3 && !kScaled) || (kType == kProductE2m1 && kScale != kScaleF32);
  Chunk chunk;
  if constexpr (kType == kTo && !kScaled) {
    TILEWISE_UNROLL
    for (int i = 0; i < 4; ++i) chunk.word[i] = run.word[kFirst / 2 + i];
  } else {
    float x[8];
    numbers_of<Machine, kFirst>(x, run);
    TILEWISE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float low = kScaled ? x[2 * i] * scale : x[2 * i], high = kScaled ? x[2 * i + 1] * scale : x[2 * i + 1];
      chunk.word[i] = kShort ? pack_short<Machine, kTo>(low, high) : Machine::template pack<kTo>(low, high);
    }
  }
  return chunk;
}

}  // namespace tilewise::device
