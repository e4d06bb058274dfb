// What differs between the compilers of device code: NVRTC, clang for AMD, and the host's compiler
// that builds the emulation. Nothing here needs a toolkit's header.
#pragma once

#include <stdint.h>

#include "device/common/error_function.h"

#define TILEWISE_INLINE __attribute__((always_inline)) inline
// Behind a lambda's parameters. One that is called once is not inlined for that, and products of a warpgroup are each
// waited for where their registers cross a call.
#define TILEWISE_INLINE_LAMBDA __attribute__((always_inline))
// The emulation needs no loop unrolled: a host's clang says of some, built for sanitizers, that it could not.
#if defined(__CUDACC_RTC__) || defined(__CUDACC__) || defined(__AMDGCN__)
#define TILEWISE_UNROLL _Pragma("unroll")
#define TILEWISE_NO_UNROLL _Pragma("unroll 1")
#else
#define TILEWISE_UNROLL
#define TILEWISE_NO_UNROLL
#endif

namespace tilewise::device {

/// Words that move as one.
template <int kWords>
struct alignas(4 * kWords) WordRun {
  uint32_t word[kWords];
  /// The i-th of its elements of 16 bits.
  TILEWISE_INLINE constexpr uint16_t element(int i) const {
    return static_cast<uint16_t>(word[i / 2] >> (16 * (i % 2)));
  }
};
using Chunk = WordRun<4>;
using HalfChunk = WordRun<2>;

/// The shared memory of kernels that need none.
struct NoShared {};

template <class T, class U>
struct IsSame {
  static constexpr bool value = false;
};
template <class T>
struct IsSame<T, T> {
  static constexpr bool value = true;
};

template <bool kFirst, class First, class Second>
struct ChooseType {
  using Type = First;
};
template <class First, class Second>
struct ChooseType<false, First, Second> {
  using Type = Second;
};
/// First where the condition holds, else Second.
template <bool kFirst, class First, class Second>
using Choose = typename ChooseType<kFirst, First, Second>::Type;

template <class T>
TILEWISE_INLINE constexpr T minimum(T a, T b) {
  return b < a ? b : a;
}
template <class T>
TILEWISE_INLINE constexpr T maximum(T a, T b) {
  return a < b ? b : a;
}
template <class T>
TILEWISE_INLINE constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

template <class Machine>
TILEWISE_INLINE int32_t shuffle_xor(int32_t value, int mask) {
  return __builtin_bit_cast(int32_t, Machine::shuffle_xor(__builtin_bit_cast(float, value), mask));
}

/// Whether a lane has so many registers beside a wave's scalar ones that what lanes could share is better worked out by
/// each.
template <class Machine>
inline constexpr bool kSparesScalars = requires { Machine::kSparesScalars; };

/// A value that is the same in every lane, made known as such where the machine has a way to.
template <class Machine>
TILEWISE_INLINE int32_t uniform(int32_t value) {
  if constexpr (requires { Machine::uniform(value); }) {
    return Machine::uniform(value);
  } else {
    return value;
  }
}

template <class Machine>
TILEWISE_INLINE float uniform(float value) {
  return __builtin_bit_cast(float, uniform<Machine>(__builtin_bit_cast(int32_t, value)));
}

/// Of all lanes of a wave: known to be the same in each.
template <class Machine>
TILEWISE_INLINE int32_t highest_of_wave(int32_t value) {
  if constexpr (requires { Machine::highest_of_wave(value); }) {
    return Machine::highest_of_wave(value);
  } else {
    TILEWISE_UNROLL
    for (int bit = 1; bit < Machine::kLanes; bit *= 2) value = maximum(value, shuffle_xor<Machine>(value, bit));
    return uniform<Machine>(value);
  }
}
template <class Machine>
TILEWISE_INLINE int32_t sum_of_wave(int32_t value) {
  if constexpr (requires { Machine::sum_of_wave(value); }) {
    return Machine::sum_of_wave(value);
  } else {
    TILEWISE_UNROLL
    for (int bit = 1; bit < Machine::kLanes; bit *= 2) value += shuffle_xor<Machine>(value, bit);
    return uniform<Machine>(value);
  }
}

/// The bits that are set in some lane of a wave: known to be the same in each.
template <class Machine>
TILEWISE_INLINE uint32_t bits_of_wave(uint32_t value) {
  if constexpr (requires { Machine::bits_of_wave(value); }) {
    return Machine::bits_of_wave(value);
  } else {
    TILEWISE_UNROLL
    for (int bit = 1; bit < Machine::kLanes; bit *= 2) {
      value |= static_cast<uint32_t>(shuffle_xor<Machine>(static_cast<int32_t>(value), bit));
    }
    return value;
  }
}

/// How many bits are set.
TILEWISE_INLINE int32_t popcount(uint32_t bits) {
#if defined(__CUDACC_RTC__) || defined(__CUDACC__)
  return __popc(bits);
#else
  return __builtin_popcount(bits);
#endif
}
/// The place of the n-th bit, from 0, of those that are set; there are more than n.
TILEWISE_INLINE int32_t nth_bit(uint32_t bits, int32_t n) {
  for (; n > 0; --n) bits &= bits - 1;
  return popcount((bits & (0u - bits)) - 1);
}

/// Keeps instructions on their side of this call, where the machine has a way to.
template <class Machine>
TILEWISE_INLINE void keep_order() {
  if constexpr (requires { Machine::keep_order(); }) Machine::keep_order();
}

/// Of a wave among those that share its matrix unit, where the machine lets it choose.
template <class Machine, int kLevel>
TILEWISE_INLINE void set_priority() {
  if constexpr (requires { Machine::template set_priority<kLevel>(); }) Machine::template set_priority<kLevel>();
}

/// A step of a plan may begin while the one before it ends, where the machine has a way to: what the step before has
/// written is there once it has waited.
template <class Machine>
TILEWISE_INLINE void wait_for_step_before() {
  if constexpr (requires { Machine::wait_for_step_before(); }) Machine::wait_for_step_before();
}
/// Blocks of the step after this one take the multiprocessors that have room from now on.
template <class Machine>
TILEWISE_INLINE void let_next_step_begin() {
  if constexpr (requires { Machine::let_next_step_begin(); }) Machine::let_next_step_begin();
}

/// A place in shared memory from which others are counted, not from where shared memory begins, where the machine has a
/// way to: immediates reach so far.
template <class Machine, class T>
TILEWISE_INLINE T* not_folded(T* place) {
  if constexpr (requires { Machine::not_folded(place); }) return Machine::not_folded(place);
  return place;
}

/// Has the value computed by here, where the machine has a way to: products that a branch later uses are moved
/// behind it otherwise, while their operands wait in registers.
template <class Machine, class Value>
TILEWISE_INLINE void compute_by_here(Value& value) {
  if constexpr (requires { Machine::compute_by_here(value); }) Machine::compute_by_here(value);
}

/// The number without its sign. NVIDIA's additions and multiplications take it at no cost; a mask of bits they do not.
TILEWISE_INLINE float magnitude(float x) {
#if defined(__CUDACC_RTC__) || defined(__CUDACC__)
  return fabsf(x);
#else
  return __builtin_fabsf(x);
#endif
}

/// The greater one, or the one that is a number.
TILEWISE_INLINE float higher(float a, float b) {
#if defined(__CUDACC_RTC__) || defined(__CUDACC__)
  return fmaxf(a, b);
#else
  return __builtin_fmaxf(a, b);
#endif
}

TILEWISE_INLINE float square_root(float x) {
#if defined(__CUDACC_RTC__) || defined(__CUDACC__)
  return sqrtf(x);
#else
  return __builtin_sqrtf(x);
#endif
}

/// e^x, 2^x and the natural logarithm to a few units in the last place, wherever x lies.
TILEWISE_INLINE float exponential(float x) {
#if defined(__CUDACC_RTC__) || defined(__CUDACC__)
  return expf(x);
#elif defined(__AMDGCN__)
  return __builtin_elementwise_exp(x);
#else
  return __builtin_expf(x);
#endif
}
TILEWISE_INLINE float power_of_two(float x) {
#if defined(__CUDACC_RTC__) || defined(__CUDACC__)
  return exp2f(x);
#elif defined(__AMDGCN__)
  return __builtin_elementwise_exp2(x);
#else
  return __builtin_exp2f(x);
#endif
}
TILEWISE_INLINE float logarithm(float x) {
#if defined(__CUDACC_RTC__) || defined(__CUDACC__)
  return logf(x);
#elif defined(__AMDGCN__)
  return __builtin_elementwise_log(x);
#else
  return __builtin_logf(x);
#endif
}

TILEWISE_INLINE float complementary_error_function(float x) {
#if defined(__CUDACC_RTC__) || defined(__CUDACC__)
  return erfcf(x);
#elif defined(__AMDGCN__)
  return erfc_by_polynomial(x);
#else
  return __builtin_erfcf(x);
#endif
}

/// a * b + c, rounded once on every machine: where that decides a result, compilers' contraction must not.
TILEWISE_INLINE float fused_multiply_add(float a, float b, float c) {
#if defined(__CUDACC_RTC__) || defined(__CUDACC__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

/// x / divisor as IEEE 754 rounds it, of a divisor whose reciprocal has been rounded so, where x * reciprocal does not
/// overflow: division proper takes twice as many instructions, and a branch. Nothing is left to correct of 0, of
/// infinity and of NaN.
TILEWISE_INLINE float quotient(float x, float divisor, float reciprocal) {
  const float near = x * reciprocal, rest = fused_multiply_add(-near, divisor, x);
  return magnitude(rest) > 0.0f ? fused_multiply_add(rest, reciprocal, near) : near;
}

/// a * b, rounded by itself, whatever it is added to: compilers contract products else.
TILEWISE_INLINE float rounded_product(float a, float b) {
#if defined(__CUDACC_RTC__) || defined(__CUDACC__)
  return __fmul_rn(a, b);
#elif defined(__clang__)
#pragma clang fp contract(off)
  return a * b;
#else
  float product = a * b;
  asm("" : "+g"(product));
  return product;
#endif
}

template <int kValue>
struct Index {
  static constexpr int value = kValue;
};

/// visit(Index<i>) for i in [kBegin, kEnd): a loop whose counter is a constant, whatever the compiler
/// would have unrolled.
template <int kBegin, int kEnd, class Visit>
TILEWISE_INLINE void for_each_index(const Visit& visit) {
  if constexpr (kEnd - kBegin == 1) {
    visit(Index<kBegin>{});
  } else if constexpr (kBegin < kEnd) {
    constexpr int kMiddle = (kBegin + kEnd) / 2;
    for_each_index<kBegin, kMiddle>(visit);
    for_each_index<kMiddle, kEnd>(visit);
  }
}

inline constexpr float kLog2E = 1.44269504088896340736f;
inline constexpr float kLn2 = 0.69314718055994530942f;
inline constexpr float kInfinity = __builtin_bit_cast(float, 0x7F800000u);
inline constexpr float kLeastNormal = 0x1p-126f;

/// A NaN with the highest payload bits alone, where the machine rounds by adding to the bits: a full payload would
/// carry into the sign and leave a number.
template <class Machine>
TILEWISE_INLINE float with_plain_nan(float x) {
  if constexpr (requires { Machine::kRoundsByAdding; }) {
    return x != x ? __builtin_bit_cast(float, 0x7FC00000u) : x;
  } else {
    return x;
  }
}

}  // namespace tilewise::device
