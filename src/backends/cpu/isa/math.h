// exp2 and tanh over vectors, with the error each caller can afford.
#pragma once

#include "backends/cpu/isa/elements.h"

namespace tilewise::backends::cpu {

template <class Real>
inline constexpr Real kLog2E = static_cast<Real>(1.44269504088896340736L);
template <class Real>
inline constexpr Real kLn2 = static_cast<Real>(0.69314718055994530942L);

TILEWISE_INLINE float power_of_2(float x) { return __builtin_exp2f(x); }
TILEWISE_INLINE double power_of_2(double x) { return __builtin_exp2(x); }
TILEWISE_INLINE float log_of_2(float x) { return __builtin_log2f(x); }
TILEWISE_INLINE double log_of_2(double x) { return __builtin_log2(x); }

/// Largest relative error of exp2: 3e-6 suits results rounded to 8 or 11 bits, 1e-7 fp32, 3e-16 fp64.
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

/// 2^x; exactly 0 for -infinity and below the normal range, exactly 1 for 0, NaN for NaN.
template <Precision kPrecision, class V>
TILEWISE_INLINE typename V::F exp2(typename V::F x) {
  using F = typename V::F;
  const F bounded = V::max(V::set1(V::kLowestExponent), x);  // NaN in x survives: max returns its second operand
  const F n = V::round(bounded);
  const F f = V::sub(bounded, n);
  return V::scale_by_power(V::fma(exp2_slope<kPrecision, V>(f), f, V::set1(1.0f)), n);
}

/// As below to a few units of fp64: e / (e + 2) with e = exp(2|x|) - 1, which exp2's parts give without
/// cancellation.
template <class V>
TILEWISE_INLINE typename V::F tanh_wide(typename V::F x) {
  using F = typename V::F;
  // -max(-20, -|x|): min(20, |x|) that keeps NaN.
  const F bounded = V::sub(V::zero(), V::max(V::set1(-20.0), V::sub(V::zero(), V::abs(x))));
  const F power = V::mul(bounded, V::set1(2.0 * kLog2E<double>));
  const F n = V::round(power), f = V::sub(power, n), one = V::set1(1.0);
  const F scale = V::scale_by_power(one, n);
  const F part = V::mul(exp2_slope<Precision::wide, V>(f), f);  // 2^f - 1
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
  const F e = exp2<Precision::full, V>(V::mul(bounded, V::set1(2.0f * kLog2E<float>)));
  const F far = V::sub(V::set1(1.0f), V::div(V::set1(2.0f), V::add(e, V::set1(1.0f))));
  const F signed_far = V::select(V::greater(V::zero(), x), V::sub(V::zero(), far), far);
  return V::select(V::greater(magnitude, V::set1(0.625f)), signed_far, near);
}

}  // namespace tilewise::backends::cpu
