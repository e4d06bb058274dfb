// Numbers of few bits as floats, a word of them at once, by what a machine has for it.
#pragma once

#include "device/common/float8_fnuz.h"
#include "device/tile/widen.h"

namespace tilewise::device {

/// Whether the machine unpacks e4m3fnuz, so that bytes of e4m3 are translated first.
template <class Machine>
inline constexpr bool kKnowsFnuz = requires(float (&to)[4]) { Machine::unpack_fnuz(to, 0u); };

/// What a widened element is multiplied by: a byte of e4m3fnuz is half of e4m3's.
template <class Machine, int kFrom>
inline constexpr float kUnitOf = kFrom == kE4m3 && kKnowsFnuz<Machine> ? 2.0f : 1.0f;

/// Where compilers would turn what follows into more instructions, did they know the word's bits.
template <class Machine>
TILEWISE_INLINE uint32_t unknown_word(uint32_t word) {
  if constexpr (requires { Machine::unknown(word); }) return Machine::unknown(word);
  return word;
}

/// What sums of products of two bytes are to be multiplied by, where bytes are multiplied.
template <class Machine>
inline constexpr float kUnitOfByteProducts = kUnitOf<Machine, kE4m3> * kUnitOf<Machine, kE4m3>;

/// What has been met in fp8 bytes: a byte's upper bit is set where one was NaN.
struct ByteNans {
  uint32_t value = 0;
};
/// A word of bytes on its way to products of bytes, as the machine takes it. NaNs only leave their mark, and whoever
/// has the sums sees to them: rare as they are, a branch for them would hold up all others.
template <class Machine>
TILEWISE_INLINE uint32_t translated_word(uint32_t word, ByteNans& nans) {
  if constexpr (!kKnowsFnuz<Machine>) return word;
  // Else compilers begin with it as soon as the word is there, or wait until it is, and keep it beside what they have
  // made of it; and put marks off to the end of a loop.
  struct {
    uint32_t value;
  } here{word};
  compute_by_here<Machine>(here);
  const uint32_t magnitude = unknown_word<Machine>(magnitudes(here.value));
  nans.value |= e4m3_nans(magnitude);
  compute_by_here<Machine>(nans);
  return without_negative_zeros(here.value, magnitude);
}

/// e4m3 bytes of kWords words, exactly.
template <class Machine, int kWords>
TILEWISE_INLINE void numbers_of_e4m3(float (&to)[4 * kWords], const uint32_t (&words)[kWords]) {
  uint32_t nans = 0;
  TILEWISE_UNROLL
  for (int w = 0; w < kWords; ++w) {
    float four[4];
    if constexpr (kKnowsFnuz<Machine>) {
      const uint32_t magnitude = unknown_word<Machine>(magnitudes(words[w]));
      nans |= e4m3_nans(magnitude);
      Machine::unpack_fnuz(four, without_negative_zeros(words[w], magnitude));
    } else if constexpr (requires { Machine::numbers_of_e4m3(four, 0u); }) {
      Machine::numbers_of_e4m3(four, words[w]);
    } else {
      TILEWISE_UNROLL
      for (int i = 0; i < 4; ++i) four[i] = widen_e4m3(words[w] >> (8 * i) & 0xFFu);
    }
    TILEWISE_UNROLL
    for (int i = 0; i < 4; ++i) to[4 * w + i] = kKnowsFnuz<Machine> ? four[i] + four[i] : four[i];
  }
  if constexpr (kKnowsFnuz<Machine>) {
    if ((nans & 0x80808080u) == 0) return;
    TILEWISE_UNROLL
    for (int i = 0; i < 4 * kWords; ++i) to[i] = widen_e4m3(words[i / 4] >> (8 * (i % 4)) & 0xFFu);
  }
}

/// The 8 e2m1 numbers of a word, exactly; else by tables of bytes: of 0, 0.5, 1, 1.5, 2, 3, 4 and 6 the two upper ones.
template <class Machine>
TILEWISE_INLINE void numbers_of_e2m1(float (&to)[8], uint32_t word) {
  if constexpr (requires { Machine::numbers_of_e2m1(to, word); }) return Machine::numbers_of_e2m1(to, word);
  TILEWISE_UNROLL
  for (uint32_t odd = 0; odd < 2; ++odd) {
    const uint32_t which = word >> (4 * odd) & 0x07070707u, signs = word << (4 - 4 * odd) & 0x80808080u;
    const uint32_t upper = Machine::choose_bytes(0x3F3F3F00u, 0x40404040u, which) | signs;
    const uint32_t lower = Machine::choose_bytes(0xC0800000u, 0xC0804000u, which);
    TILEWISE_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
      constexpr uint32_t kZeros = 12;
      const uint32_t bits = Machine::choose_bytes(lower, upper, (4 + i) << 24 | i << 16 | kZeros << 8 | kZeros);
      to[2 * i + odd] = __builtin_bit_cast(float, bits);
    }
  }
}

/// Two numbers whose significant bits fill no more than the upper half of a float as 16-bit elements, exactly.
template <class Machine, int kElement>
TILEWISE_INLINE uint32_t pack_short(float low, float high) {
  if constexpr (kElement == kBf16 && requires { Machine::high_halves(0u, 0u); }) {
    return Machine::high_halves(__builtin_bit_cast(uint32_t, low), __builtin_bit_cast(uint32_t, high));
  } else {
    return Machine::template pack<kElement>(low, high);
  }
}

}  // namespace tilewise::device
