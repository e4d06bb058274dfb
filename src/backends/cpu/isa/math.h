// exp2 and tanh over vectors, with the error each caller can afford.
#pragma once

#include "backends/cpu/isa/elements.h"

namespace tilewise::backends::cpu {

inline constexpr float kLog2E = 1.44269504088896340736f;
inline constexpr float kLn2 = 0.69314718055994530942f;

/// Largest relative error of exp2: 3e-6 suits results rounded to 8 or 11 bits, 1e-7 fp32.
enum class Precision { low, full };

/// 2^x; exactly 0 for -infinity and below the normal range, exactly 1 for 0, NaN for NaN.
/// Coefficients: minimax in relative error on [-0.5, 0.5] with the constant term held at 1.
template <Precision kPrecision, class V>
TILEWISE_INLINE typename V::F exp2(typename V::F x) {
  using F = typename V::F;
  const F bounded = V::max(V::set1(V::kLowestExponent), x);  // NaN in x survives: max returns its second operand
  const F n = V::round(bounded);
  const F f = V::sub(bounded, n);
  F p;
  if constexpr (kPrecision == Precision::full) {
    p = V::fma(V::set1(0x1.5bba14p-10f), f, V::set1(0x1.3cea88p-7f));
    p = V::fma(p, f, V::set1(0x1.c6b752p-5f));
    p = V::fma(p, f, V::set1(0x1.ebf9bcp-3f));
    p = V::fma(p, f, V::set1(0x1.62e42ap-1f));
  } else {
    p = V::fma(V::set1(0x1.3a02c8p-7f), f, V::set1(0x1.c9fc46p-5f));
    p = V::fma(p, f, V::set1(0x1.ec0378p-3f));
    p = V::fma(p, f, V::set1(0x1.62e12cp-1f));
  }
  return V::scale_by_power(V::fma(p, f, V::set1(1.0f)), n);
}

/// tanh with a relative error of about 1e-7 everywhere, since softcap multiplies it by the cap: an
/// odd polynomial (minimax on [0, 0.625]) near 0, 1 - 2 / (e^2|x| + 1) beyond.
template <class V>
TILEWISE_INLINE typename V::F tanh(typename V::F x) {
  using F = typename V::F;
  const F magnitude = V::abs(x), square = V::mul(x, x);
  F p = V::fma(V::set1(-0x1.75e1cap-8f), square, V::set1(0x1.52269ap-6f));
  p = V::fma(p, square, V::set1(-0x1.b83c5ap-5f));
  p = V::fma(p, square, V::set1(0x1.110726p-3f));
  p = V::fma(p, square, V::set1(-0x1.555532p-2f));
  const F near = V::fma(V::mul(x, square), p, x);
  // -max(-20, -|x|): min(20, |x|) that keeps NaN.
  const F bounded = V::sub(V::zero(), V::max(V::set1(-20.0f), V::sub(V::zero(), magnitude)));
  const F e = exp2<Precision::full, V>(V::mul(bounded, V::set1(2.0f * kLog2E)));
  const F far = V::sub(V::set1(1.0f), V::div(V::set1(2.0f), V::add(e, V::set1(1.0f))));
  const F signed_far = V::select(V::greater(V::zero(), x), V::sub(V::zero(), far), far);
  return V::select(V::greater(magnitude, V::set1(0.625f)), signed_far, near);
}

}  // namespace tilewise::backends::cpu
