// What each operator does to numbers: the one place, by which constants are folded and expressions evaluated. Total:
// every operation has a result for all operands, and none traps.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <type_traits>

#include "expression/expression.hpp"

namespace tilewise::expression {

// Integers wrap around, as torch's do.
template <typename Number>
using Wrapping =
    std::conditional_t<std::integral<Number>, std::make_unsigned<Number>, std::type_identity<Number>>::type;

template <typename Number>
[[nodiscard]] constexpr Number added(Number a, Number b) {
  return static_cast<Number>(static_cast<Wrapping<Number>>(a) + static_cast<Wrapping<Number>>(b));
}
template <typename Number>
[[nodiscard]] constexpr Number subtracted(Number a, Number b) {
  return static_cast<Number>(static_cast<Wrapping<Number>>(a) - static_cast<Wrapping<Number>>(b));
}
template <typename Number>
[[nodiscard]] constexpr Number multiplied(Number a, Number b) {
  return static_cast<Number>(static_cast<Wrapping<Number>>(a) * static_cast<Wrapping<Number>>(b));
}
template <typename Number>
[[nodiscard]] constexpr Number negated(Number a) {
  if constexpr (std::integral<Number>) {
    return subtracted(Number{0}, a);
  } else {
    return -a;
  }
}

/// The quotient rounded down. By zero: 0 of integers, the quotient itself of floats.
[[nodiscard]] constexpr std::int64_t floor_divided(std::int64_t a, std::int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return negated(a);  // the lowest number has no quotient
  return a / b - static_cast<std::int64_t>(a % b != 0 && (a < 0) != (b < 0));
}
/// a - b * floor_divided(a, b): it has the sign of b.
[[nodiscard]] constexpr std::int64_t remainder_of(std::int64_t a, std::int64_t b) {
  return subtracted(a, multiplied(b, floor_divided(a, b)));
}
template <std::floating_point Real>
[[nodiscard]] Real remainder_of(Real a, Real b) {
  const Real rest = std::fmod(a, b);
  return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
}
template <std::floating_point Real>
[[nodiscard]] Real floor_divided(Real a, Real b) {
  if (b == 0) return a / b;
  // What is left is taken away first, so that a quotient just below an integer is not rounded up to it.
  const Real rest = std::fmod(a, b);
  const Real quotient = (a - rest) / b - (rest != 0 && (b < 0) != (rest < 0) ? Real{1} : Real{0});
  return std::isfinite(quotient) ? std::round(quotient) : quotient;
}

/// A NaN wins, as in torch.
template <typename Number>
[[nodiscard]] constexpr Number minimum_of(Number a, Number b) {
  return a != a || a < b ? a : b;
}
template <typename Number>
[[nodiscard]] constexpr Number maximum_of(Number a, Number b) {
  return a != a || a > b ? a : b;
}
template <typename Number>
[[nodiscard]] Number absolute_of(Number a) {
  if constexpr (std::integral<Number>) {
    return a < 0 ? negated(a) : a;
  } else {
    return std::fabs(a);
  }
}

/// Calls use(f) with f(a, b) of an operator that takes two numbers and gives one.
template <typename Number, typename Use>
void with_arithmetic(Op op, const Use& use) {
  switch (op) {
    case Op::add:
      return use([](Number a, Number b) { return added(a, b); });
    case Op::subtract:
      return use([](Number a, Number b) { return subtracted(a, b); });
    case Op::multiply:
      return use([](Number a, Number b) { return multiplied(a, b); });
    case Op::floor_divide:
      return use([](Number a, Number b) { return floor_divided(a, b); });
    case Op::remainder:
      return use([](Number a, Number b) { return remainder_of(a, b); });
    case Op::minimum:
      return use([](Number a, Number b) { return minimum_of(a, b); });
    case Op::maximum:
      return use([](Number a, Number b) { return maximum_of(a, b); });
    default:
      // Integers are divided as floats.
      if constexpr (std::floating_point<Number>) use([](Number a, Number b) { return a / b; });
  }
}

/// Likewise with a bool for a result.
template <typename Operand, typename Use>
void with_comparison(Op op, const Use& use) {
  switch (op) {
    case Op::less:
      return use([](Operand a, Operand b) { return a < b; });
    case Op::less_equal:
      return use([](Operand a, Operand b) { return a <= b; });
    case Op::equal:
      return use([](Operand a, Operand b) { return a == b; });
    default:
      return use([](Operand a, Operand b) { return a != b; });
  }
}

/// Calls use(f) with f(a) of an operator that takes one number.
template <typename Number, typename Use>
void with_unary(Op op, const Use& use) {
  if (op == Op::negate) return use([](Number a) { return negated(a); });
  if (op == Op::absolute) return use([](Number a) { return absolute_of(a); });
  if constexpr (std::floating_point<Number>) {
    if (op == Op::exp) return use([](Number a) { return std::exp(a); });
    if (op == Op::exp2) return use([](Number a) { return std::exp2(a); });
    if (op == Op::log) return use([](Number a) { return std::log(a); });
    use([](Number a) { return std::tanh(a); });
  }
}

}  // namespace tilewise::expression
