// What each operator does to numbers: by which constants are folded and expressions evaluated. What kernels share of it
// stands in device/common/arithmetic.h.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>

#include "device/common/arithmetic.h"
#include "expression/expression.hpp"

namespace tilewise::expression {

using device::added, device::subtracted, device::multiplied, device::negated, device::minimum_of, device::maximum_of;

/// The quotient rounded down. By zero: 0 of integers, the quotient itself of floats.
[[nodiscard]] constexpr std::int64_t floor_divided(std::int64_t a, std::int64_t b) {
  return device::floor_divided_integer(a, b);
}
template <std::floating_point Real>
[[nodiscard]] Real floor_divided(Real a, Real b) {
  if (b == 0) return a / b;
  const Real quotient = device::floor_quotient_from(std::fmod(a, b), a, b);
  return std::isfinite(quotient) ? std::round(quotient) : quotient;
}
/// a - b * floor_divided(a, b): it has the sign of b.
[[nodiscard]] constexpr std::int64_t remainder_of(std::int64_t a, std::int64_t b) {
  return device::remainder_of_integer(a, b);
}
template <std::floating_point Real>
[[nodiscard]] Real remainder_of(Real a, Real b) {
  return device::remainder_from(std::fmod(a, b), b);
}
template <typename Number>
[[nodiscard]] Number absolute_of(Number a) {
  if constexpr (std::integral<Number>) {
    return device::absolute_integer(a);
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
