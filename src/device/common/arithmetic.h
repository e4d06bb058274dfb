// What operators of expressions do to numbers, on the host and in kernels. Total: every operation has a result for all
// operands, and none traps.
#pragma once

#include <stdint.h>

namespace tilewise::device {

/// What a type is computed in: integers wrap around, as torch's do.
template <class Number>
struct WrappingOf {
  using Type = Number;
  static constexpr bool kIsInteger = false;
};
template <>
struct WrappingOf<int32_t> {
  using Type = uint32_t;
  static constexpr bool kIsInteger = true;
};
template <>
struct WrappingOf<int64_t> {
  using Type = uint64_t;
  static constexpr bool kIsInteger = true;
};
template <class Number>
using Wrapping = typename WrappingOf<Number>::Type;

template <class Number>
constexpr Number added(Number a, Number b) {
  return static_cast<Number>(static_cast<Wrapping<Number>>(a) + static_cast<Wrapping<Number>>(b));
}
template <class Number>
constexpr Number subtracted(Number a, Number b) {
  return static_cast<Number>(static_cast<Wrapping<Number>>(a) - static_cast<Wrapping<Number>>(b));
}
template <class Number>
constexpr Number multiplied(Number a, Number b) {
  return static_cast<Number>(static_cast<Wrapping<Number>>(a) * static_cast<Wrapping<Number>>(b));
}
template <class Number>
constexpr Number negated(Number a) {
  if constexpr (WrappingOf<Number>::kIsInteger) {
    return subtracted(Number{0}, a);
  } else {
    return -a;
  }
}
/// Of integers.
template <class Number>
constexpr Number absolute_integer(Number a) {
  return a < 0 ? negated(a) : a;
}

/// The quotient of integers rounded down; 0 by zero.
template <class Number>
constexpr Number floor_divided_integer(Number a, Number b) {
  if (b == 0) return 0;
  if (b == -1) return negated(a);  // the lowest number has no quotient
  return a / b - static_cast<Number>(a % b != 0 && (a < 0) != (b < 0));
}
/// a - b * floor_divided_integer(a, b): it has the sign of b.
template <class Number>
constexpr Number remainder_of_integer(Number a, Number b) {
  return subtracted(a, multiplied(b, floor_divided_integer(a, b)));
}

/// The remainder with the sign of the divisor, of floats whose remainder as C's fmod() has it is `rest`.
template <class Real>
constexpr Real remainder_from(Real rest, Real b) {
  return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
}
/// Likewise the quotient rounded down, but for its own rounding: b is not 0. What is left is taken away first, so that
/// a quotient just below an integer is not rounded up to it.
template <class Real>
constexpr Real floor_quotient_from(Real rest, Real a, Real b) {
  return (a - rest) / b - (rest != 0 && (b < 0) != (rest < 0) ? Real{1} : Real{0});
}

/// A NaN wins, as in torch.
template <class Number>
constexpr Number minimum_of(Number a, Number b) {
  return a != a || a < b ? a : b;
}
template <class Number>
constexpr Number maximum_of(Number a, Number b) {
  return a != a || a > b ? a : b;
}

/// C's fmodf(), exact, for machines whose compilers bring none.
constexpr float float_remainder(float a, float b) {
  constexpr uint32_t kInfinite = 0x7F800000u, kOne = 1u << 23;
  const uint32_t a_bits = __builtin_bit_cast(uint32_t, a), sign = a_bits & 0x80000000u;
  uint32_t rest = a_bits & 0x7FFFFFFFu, divisor = __builtin_bit_cast(uint32_t, b) & 0x7FFFFFFFu;
  if (rest >= kInfinite || divisor > kInfinite || divisor == 0) return __builtin_bit_cast(float, 0x7FC00000u);
  if (rest < divisor) return a;
  // Both as integers with an exponent; subnormal ones have that of the least normal ones.
  auto exponent = static_cast<int32_t>(rest >> 23), least = static_cast<int32_t>(divisor >> 23);
  rest = exponent == 0 ? rest : (rest & (kOne - 1)) | kOne;
  divisor = least == 0 ? divisor : (divisor & (kOne - 1)) | kOne;
  exponent = exponent == 0 ? 1 : exponent;
  least = least == 0 ? 1 : least;
  rest %= divisor;
  for (int32_t left = exponent - least; left > 0;) {
    const int32_t bits = left < 8 ? left : 8;  // of numbers below 2^24
    rest = (rest << bits) % divisor;
    left -= bits;
  }
  if (rest == 0) return sign != 0 ? -0.0f : 0.0f;
  const auto place = static_cast<int32_t>(__builtin_bit_cast(uint32_t, static_cast<float>(rest)) >> 23) - 127;
  const int32_t up = 23 - place < least - 1 ? 23 - place : least - 1;
  rest <<= up;
  const uint32_t kept = rest < kOne ? rest : (rest & (kOne - 1)) | static_cast<uint32_t>(least - up) << 23;
  return __builtin_bit_cast(float, sign | kept);
}

}  // namespace tilewise::device
