// What is done with a block of products: factor, bias, activation with its gate, conversion.
#pragma once

#include <stdint.h>

#include "backends/cpu/gemm/isa/numbers.h"
#include "backends/cpu/isa/math.h"

namespace tilewise::backends::cpu {

TILEWISE_INLINE float erfc_of(float x) { return __builtin_erfcf(x); }
TILEWISE_INLINE double erfc_of(double x) { return __builtin_erfc(x); }

template <class V, Precision kPrecision>
class Epilogue {
  using F = typename V::F;
  using Real = typename V::Real;

 public:
  /// Rows of products c, where those of the second run begin `second` further. They are overwritten.
  static void run(const GemmTask& t, Real* c, int64_t ldc, int64_t second) {
    const auto* factors = static_cast<const Real*>(t.factor);
    for (int64_t row = 0; row < t.rows; ++row, c += ldc) {
      const Real factor = factors ? factors[row] : 1;
      const bool pairs = t.gated && t.w.num_runs == 1;
      for (int32_t i = 0; i < t.w.num_runs; ++i)
        add_bias(c + i * second, static_cast<const Real*>(t.w.runs[i].bias), t.w.outputs,
                 t.factor_on_product ? factor : 1);
      const int64_t results = pairs ? t.w.outputs / 2 : t.w.outputs;
      if (pairs) part(c, c + second, results);
      for (int64_t j = 0; j < results; j += V::kLanes) {
        const F first = V::load(c + j);
        V::store(c + j, t.gated ? gated(t.activation, first, V::load(c + second + j)) : clamped(t.activation, first));
      }
      store_numbers<V>(c, results, t.factor_on_product ? 1 : factor, t.out, t.out_element, row * t.out_stride);
    }
  }

 private:
  static void add_bias(Real* c, const Real* bias, int64_t outputs, Real factor) {
    const F f = V::set1(factor);
    for (int64_t j = 0; j < outputs; j += V::kLanes) {
      const F product = V::mul(V::load(c + j), f);
      V::store(c + j, bias ? V::add(product, V::load(bias + j)) : product);
    }
  }

  /// Gates to the front, ups to where a second run's are.
  static void part(Real* c, Real* ups, int64_t results) {
    for (int64_t j = 0; j < results; ++j) {
      ups[j] = c[2 * j + 1];
      c[j] = c[2 * j];
    }
  }

  TILEWISE_INLINE static F negative(F x) { return V::sub(V::zero(), x); }
  /// A NaN in x stays: max() returns its second operand then.
  TILEWISE_INLINE static F at_most(F x, Real limit) { return negative(V::max(V::set1(-limit), negative(x))); }
  TILEWISE_INLINE static F at_least(F x, Real limit) { return V::max(V::set1(limit), x); }

  /// x / (1 + e^(-alpha x)): 0 for a large negative x.
  TILEWISE_INLINE static F swish(F x, F alpha) {
    return V::div(x, V::add(V::set1(1), exp<kPrecision, V>(negative(V::mul(alpha, x)))));
  }

  static F gelu(F x) {
    alignas(64) Real lanes[V::kLanes];
    V::store(lanes, x);
    for (Real& lane : lanes) lane *= Real{0.5} * erfc_of(lane * static_cast<Real>(-0.70710678118654752440L));
    return V::load(lanes);
  }

  /// 0.5 x (1 + tanh(u)) is x sigmoid(2 u).
  TILEWISE_INLINE static F gelu_tanh(F x) {
    const F factor = V::set1(static_cast<Real>(1.59576912160573071176L)), cubic = V::set1(static_cast<Real>(0.044715L));
    const F slope = V::mul(factor, V::fma(V::mul(cubic, x), x, V::set1(1)));
    return swish(x, slope);
  }

  TILEWISE_INLINE static F activate(const device::Activation& a, F x) {
    using enum device::ActivationKind;
    switch (a.kind) {
      case silu:
        return swish(x, V::set1(1));
      case gelu:
        return Epilogue::gelu(x);
      case gelu_tanh:
        return Epilogue::gelu_tanh(x);
      case relu:
        return at_least(x, 0);
      case relu_squared:
        return V::mul(at_least(x, 0), at_least(x, 0));
      case swiglu_oai:
        return swish(x, V::set1(static_cast<Real>(a.alpha)));
      default:
        return x;
    }
  }

  TILEWISE_INLINE static F clamped(const device::Activation& a, F x) {
    const auto limit = static_cast<Real>(a.limit);
    if (a.clamp == device::ActivationClamp::before) x = at_most(x, limit);
    x = activate(a, x);
    return a.clamp == device::ActivationClamp::after ? at_most(x, limit) : x;
  }

  TILEWISE_INLINE static F gated(const device::Activation& a, F gate, F up) {
    const auto limit = static_cast<Real>(a.limit);
    if (a.clamp != device::ActivationClamp::none) up = at_least(at_most(up, limit), -limit);
    if (a.kind == device::ActivationKind::swiglu_oai) up = V::add(up, V::set1(1));
    return V::mul(clamped(a, gate), up);
  }
};

}  // namespace tilewise::backends::cpu
