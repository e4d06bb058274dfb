// exp and tanh over vectors, with the error each caller can afford.
#pragma once

#include "backends/cpu/isa/elements.h"

namespace tilewise::backends::cpu {

template <class Real>
inline constexpr Real kLog2E = static_cast<Real>(1.44269504088896340736L);

TILEWISE_INLINE float exp_of(float x) { return __builtin_expf(x); }
TILEWISE_INLINE double exp_of(double x) { return __builtin_exp(x); }
TILEWISE_INLINE float log_of(float x) { return __builtin_logf(x); }
TILEWISE_INLINE double log_of(double x) { return __builtin_log(x); }

/// Largest relative error of exp, for x near 0: 3e-6 suits results rounded to 8 or 11 bits, 1e-7 fp32, 3e-16 fp64.
enum class Precision { low, full, wide };

/// What a vector's numbers can hold.
template <class V>
TILEWISE_INLINE constexpr Precision best_precision() {
  return sizeof(typename V::Real) == sizeof(double) ? Precision::wide : Precision::full;
}

/// (2^f - 1) / f on [-0.5, 0.5]. Coefficients: for the first two minimax in the relative error of 2^f, for
/// the last interpolated at Chebyshev's nodes, which leaves 2e-17.
template <Precision kPrecision, class V>
TILEWISE_INLINE typename V::F exp2_slope(typename V::F f) {
  typename V::F p;
  if constexpr (kPrecision == Precision::wide) {
    p = V::fma(V::set1(0x1.e9d3fe3952179p-32), f, V::set1(0x1.e6063f7217bc6p-28));
    p = V::fma(p, f, V::set1(0x1.b524fae627834p-24));
    p = V::fma(p, f, V::set1(0x1.62bfd47773353p-20));
    p = V::fma(p, f, V::set1(0x1.ffcbfc670dcd4p-17));
    p = V::fma(p, f, V::set1(0x1.430913096fd9fp-13));
    p = V::fma(p, f, V::set1(0x1.5d87fe78a5276p-10));
    p = V::fma(p, f, V::set1(0x1.3b2ab6fba1ddap-7));
    p = V::fma(p, f, V::set1(0x1.c6b08d704a0c2p-5));
    p = V::fma(p, f, V::set1(0x1.ebfbdff82c598p-3));
    p = V::fma(p, f, V::set1(0x1.62e42fefa39efp-1));
  } else if constexpr (kPrecision == Precision::full) {
    p = V::fma(V::set1(0x1.5bba14p-10f), f, V::set1(0x1.3cea88p-7f));
    p = V::fma(p, f, V::set1(0x1.c6b752p-5f));
    p = V::fma(p, f, V::set1(0x1.ebf9bcp-3f));
    p = V::fma(p, f, V::set1(0x1.62e42ap-1f));
  } else {
    p = V::fma(V::set1(0x1.3a02c8p-7f), f, V::set1(0x1.c9fc46p-5f));
    p = V::fma(p, f, V::set1(0x1.ec0378p-3f));
    p = V::fma(p, f, V::set1(0x1.62e12cp-1f));
  }
  return p;
}

/// e^x as 2^n times 2^f with n integral, in the form that V::scale takes.
template <class V>
struct Power {
  typename V::F n, f;
};

template <class V>
TILEWISE_INLINE Power<V> power_of(typename V::F x) {
  using F = typename V::F;
  const F factor = V::set1(kLog2E<typename V::Real>);
  if constexpr (V::kSplitsPowers) {
    const F power = V::mul(x, factor), f = V::fraction(power);
    return {V::sub(power, f), f};
  } else {
    // Bounded to where 2^n is 0 and infinity; a NaN stays, since min and max return their second operand then. What is
    // added leaves no fraction, and n as a biased exponent in the lowest bits.
    const F bounded = V::min(V::set1(V::kHighest), V::max(V::set1(V::kLowest), x)), rounder = V::set1(V::kRounder);
    const F n = V::fma(bounded, factor, rounder);
    return {n, V::fms(bounded, factor, V::sub(n, rounder))};
  }
}

/// e^x; exactly 1 for 0, 0 for -infinity and, under FlushDenormals, below the normal range, infinity beyond the largest
/// number, NaN for NaN.
template <Precision kPrecision, class V>
TILEWISE_INLINE typename V::F exp(typename V::F x) {
  const Power<V> power = power_of<V>(x);
  return V::scale(V::fma(exp2_slope<kPrecision, V>(power.f), power.f, V::set1(1.0f)), power.n);
}

/// ln 2 in two parts, of which the first has so few bits that its products with exponents are exact.
template <class Real>
inline constexpr Real kLn2High = static_cast<Real>(sizeof(Real) == sizeof(float) ? 0x1.63p-1 : 0x1.62e42feep-1);
template <class Real>
inline constexpr Real kLn2Low =
    static_cast<Real>(sizeof(Real) == sizeof(float) ? -0x1.bd0106p-13 : 0x1.a39ef35793c76p-33);

/// e^x, or 2^x, to a unit or two of fp32 or fp64 wherever x is, for which exp() is too coarse far from 0. Likewise 0
/// for -infinity, infinity beyond the largest number, NaN for NaN.
template <bool kOfTwo, class V>
TILEWISE_INLINE typename V::F exact_exp(typename V::F x) {
  using F = typename V::F;
  using Real = typename V::Real;
  const Real factor = kOfTwo ? Real{1} : kLog2E<Real>;
  const auto power_in_bounds = [factor](F bounded) { return V::mul(bounded, V::set1(factor)); };
  // From where on 2^n is infinity, and 0. A NaN stays: max returns its second operand then.
  const auto bounded_by = [x](Real least, Real most) {
    const F above = V::max(V::set1(least), x);
    return V::sub(V::zero(), V::max(V::set1(-most), V::sub(V::zero(), above)));
  };
  F bounded, n, exponent;
  if constexpr (V::kSplitsPowers) {
    constexpr Real kMost = sizeof(Real) == sizeof(float) ? 160 : 1100;
    bounded = bounded_by(-kMost / factor, kMost / factor);
    const F power = power_in_bounds(bounded);
    exponent = n = V::sub(power, V::fraction(power));
  } else {
    // The exponent less one: 2^n of the largest is no number, but half of it is.
    const Real unit = kLog2E<Real> / factor, least = V::kLowest + static_cast<Real>(0.7);
    bounded = bounded_by(least * unit, V::kHighest * unit);
    const F rounded = V::add(power_in_bounds(bounded), V::set1(V::kRounder));
    exponent = V::sub(rounded, V::set1(V::kRounder));
    n = V::sub(rounded, V::set1(Real{1}));
  }
  F f = V::sub(bounded, exponent);
  if constexpr (!kOfTwo) {
    const F rest = V::sub(bounded, V::mul(exponent, V::set1(kLn2High<Real>)));
    f = V::mul(V::sub(rest, V::mul(exponent, V::set1(kLn2Low<Real>))), V::set1(factor));
  }
  const F part = V::fma(exp2_slope<best_precision<V>(), V>(f), f, V::set1(Real{1}));
  return V::scale(V::kSplitsPowers ? part : V::add(part, part), n);
}

/// As below to a few units of fp64: e / (e + 2) with e = exp(2|x|) - 1, which exp's parts give without
/// cancellation.
template <class V>
TILEWISE_INLINE typename V::F tanh_wide(typename V::F x) {
  using F = typename V::F;
  // -max(-20, -|x|): min(20, |x|) that keeps NaN.
  const F bounded = V::sub(V::zero(), V::max(V::set1(-20.0), V::sub(V::zero(), V::abs(x))));
  const Power<V> power = power_of<V>(V::add(bounded, bounded));
  const F one = V::set1(1.0), scale = V::scale(one, power.n);
  const F part = V::mul(exp2_slope<Precision::wide, V>(power.f), power.f);  // 2^f - 1
  const F e = V::fma(part, scale, V::sub(scale, one));
  const F magnitude = V::div(e, V::add(e, V::set1(2.0)));
  return V::select(V::greater(V::zero(), x), V::sub(V::zero(), magnitude), magnitude);
}

/// tanh with a relative error of about 1e-7 everywhere, since softcap multiplies it by the cap: an
/// odd polynomial (minimax on [0, 0.625]) near 0, 1 - 2 / (e^2|x| + 1) beyond.
template <class V>
TILEWISE_INLINE typename V::F tanh(typename V::F x) {
  if constexpr (best_precision<V>() == Precision::wide) return tanh_wide<V>(x);
  using F = typename V::F;
  const F magnitude = V::abs(x), square = V::mul(x, x);
  F p = V::fma(V::set1(-0x1.75e1cap-8f), square, V::set1(0x1.52269ap-6f));
  p = V::fma(p, square, V::set1(-0x1.b83c5ap-5f));
  p = V::fma(p, square, V::set1(0x1.110726p-3f));
  p = V::fma(p, square, V::set1(-0x1.555532p-2f));
  const F near = V::fma(V::mul(x, square), p, x);
  // -max(-20, -|x|): min(20, |x|) that keeps NaN.
  const F bounded = V::sub(V::zero(), V::max(V::set1(-20.0f), V::sub(V::zero(), magnitude)));
  const F e = exp<Precision::full, V>(V::add(bounded, bounded));
  const F far = V::sub(V::set1(1.0f), V::div(V::set1(2.0f), V::add(e, V::set1(1.0f))));
  const F signed_far = V::select(V::greater(V::zero(), x), V::sub(V::zero(), far), far);
  return V::select(V::greater(magnitude, V::set1(0.625f)), signed_far, near);
}

}  // namespace tilewise::backends::cpu
