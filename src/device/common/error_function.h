// erfc() in f32 for machines whose compilers bring none.
#pragma once

#include <stdint.h>

// NVRTC has a function of its own, and no such builtins.
#if !defined(__CUDACC_RTC__) && !defined(__CUDACC__)

namespace tilewise::device {

/// Within 4 units in the last place where the machine's power of two is within one. (1 + 2a) exp(a^2) erfc(a) is a
/// polynomial of (a - 2) / (a + 2): Shepherd and Laframboise, Mathematics of Computation 36, 1981.
inline float erfc_by_polynomial(float x) {
  const auto fma = [](float a, float b, float c) { return __builtin_fmaf(a, b, c); };
  const float a = __builtin_fabsf(x);
  if (!(a <= 10.0546875f)) return x != x ? x : x > 0.0f ? 0.0f : 2.0f;
  const float inverse = 1.0f / (a + 2.0f);
  float q = (a - 2.0f) * inverse;
  q = fma(inverse, fma(q, -a, fma(q + 1.0f, -2.0f, a)), q);  // with what its rounding left out
  float p = -0x1.a48024p-12f;
  p = fma(p, q, -0x1.42a172p-10f);
  p = fma(p, q, 0x1.585784p-10f);
  p = fma(p, q, 0x1.1ade24p-07f);
  p = fma(p, q, -0x1.081b72p-07f);
  p = fma(p, q, -0x1.bc0b94p-05f);
  p = fma(p, q, 0x1.4ffc40p-03f);
  p = fma(p, q, -0x1.540840p-03f);
  p = fma(p, q, -0x1.7bf612p-04f);
  p = fma(p, q, 0x1.1ba03ap-02f);
  const float divisor = 1.0f / fma(2.0f, a, 1.0f), whole = fma(p, divisor, divisor);
  const float scaled = fma(fma(fma(whole, -a, 0.5f), 2.0f, p - whole), divisor, whole);
  // exp(-a^2) = 2^-(square log2(e)), with what rounding left out of the square and of the product.
  constexpr float kLog2EHigh = 0x1.715476p+0f, kLog2ELow = 0x1.4ae0cp-26f, kNaturalLog2 = 0x1.62e430p-1f;
  const float square = a * a, exponent = kLog2EHigh * square;
  const float left_out = fma(kLog2ELow, square, fma(kLog2EHigh, square, -exponent));
  const float rest = fma(-a, a, square) - kNaturalLog2 * left_out, power = __builtin_exp2f(-exponent);
  const float result = fma(scaled, power, scaled * power * rest);
  return x < 0.0f ? 2.0f - result : result;
}

}  // namespace tilewise::device

#endif
