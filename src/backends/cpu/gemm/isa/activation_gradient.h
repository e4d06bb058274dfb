// The gradient of what an activation is given, row by row.
#pragma once

#include <stdint.h>

#include "backends/cpu/gemm/isa/epilogue.h"
#include "backends/cpu/gemm/isa/numbers.h"
#include "backends/cpu/isa/arena.h"
#include "backends/cpu/isa/pack.h"

namespace tilewise::backends::cpu {

template <class V, Precision kPrecision>
class ActivationGradient {
  using F = typename V::F;
  using Real = typename V::Real;

  /// Of one row each.
  struct Scratch {
    Arena<V> arena;
    Real *gate, *up, *dresult, *result;
    TILEWISE_INLINE Scratch(void* base, int64_t results)
        : arena(base),
          gate(arena.reals(round_up(results, 16))),
          up(arena.reals(round_up(results, 16))),
          dresult(arena.reals(round_up(results, 16))),
          result(arena.reals(round_up(2 * results, 16))) {}
  };

 public:
  static size_t scratch_bytes(int64_t results) { return Scratch(nullptr, results).arena.used(); }

  static void run(const ActivationTask& t, void* scratch) {
    const Scratch s(scratch, t.results);
    const bool gated = t.layout != device::GateLayout::none;
    for (int64_t row = 0; row < t.rows; ++row) {
      const Real factor = t.factor ? static_cast<const Real*>(t.factor)[row] : 1;
      load_numbers<V>(t.dresult, t.dresult_element, row * t.dresult_stride, t.results, s.dresult);
      if (t.arguments) load_arguments(t, static_cast<const Real*>(t.arguments) + row * t.argument_stride, s);
      const Real products = gated ? of_gates(t, s) : t.arguments ? of_arguments(t, s) : copy(t, s);
      if (t.products) static_cast<Real*>(t.products)[row] = products;
      if (t.result) store_numbers<V>(s.result, t.results, 1, t.result, t.element, row * t.result_stride);
      store_arguments(t, s, row, factor);
    }
  }

 private:
  static void load_arguments(const ActivationTask& t, const Real* from, const Scratch& s) {
    if (t.layout == device::GateLayout::interleaved) {
      for (int64_t j = 0; j < t.results; ++j) {
        s.gate[j] = from[2 * j];
        s.up[j] = from[2 * j + 1];
      }
      return;
    }
    load_scaled<V>(from, t.results, 1, s.gate);
    if (t.layout == device::GateLayout::concatenated) load_scaled<V>(from + t.results, t.results, 1, s.up);
  }

  /// The derivatives times dresult take the arguments' place.
  static Real of_gates(const ActivationTask& t, const Scratch& s) {
    F products = V::zero();
    for (int64_t j = 0; j < t.results; j += V::kLanes) {
      const Slope gate = clamped(t.activation, V::load(s.gate + j));
      const Slope up = clamped_up(t.activation, V::load(s.up + j));
      const F dresult = V::load(s.dresult + j), result = V::mul(gate.value, up.value);
      V::store(s.result + j, result);
      products = V::add(products, V::select(V::first(t.results - j), V::mul(result, dresult), V::zero()));
      V::store(s.gate + j, V::mul(dresult, V::mul(gate.derivative, up.value)));
      V::store(s.up + j, V::mul(dresult, V::mul(gate.value, up.derivative)));
    }
    return V::reduce_add(products);
  }

  static Real of_arguments(const ActivationTask& t, const Scratch& s) {
    F products = V::zero();
    for (int64_t j = 0; j < t.results; j += V::kLanes) {
      const Slope active = clamped(t.activation, V::load(s.gate + j));
      const F dresult = V::load(s.dresult + j);
      V::store(s.result + j, active.value);
      products = V::add(products, V::select(V::first(t.results - j), V::mul(active.value, dresult), V::zero()));
      V::store(s.gate + j, V::mul(dresult, active.derivative));
    }
    return V::reduce_add(products);
  }

  static Real copy(const ActivationTask& t, const Scratch& s) {
    load_scaled<V>(s.dresult, t.results, 1, s.gate);
    return 0;
  }

  static void store_arguments(const ActivationTask& t, const Scratch& s, int64_t row, Real factor) {
    const int64_t at = row * t.dargument_stride;
    if (t.layout == device::GateLayout::interleaved) {
      for (int64_t j = 0; j < t.results; ++j) {
        s.result[2 * j] = s.gate[j];
        s.result[2 * j + 1] = s.up[j];
      }
      return store_numbers<V>(s.result, 2 * t.results, factor, t.dargument, t.element, at);
    }
    store_numbers<V>(s.gate, t.results, factor, t.dargument, t.element, at);
    if (t.layout == device::GateLayout::concatenated)
      store_numbers<V>(s.up, t.results, factor, t.dargument, t.element, at + t.results);
  }

  /// A function's value and its derivative.
  struct Slope {
    F value, derivative;
  };

  TILEWISE_INLINE static F one() { return V::set1(1); }
  TILEWISE_INLINE static F negative(F x) { return V::sub(V::zero(), x); }

  /// A NaN stays.
  TILEWISE_INLINE static Slope at_most(F x, F limit) {
    const auto above = V::greater(x, limit);
    return {V::select(above, limit, x), V::select(above, V::zero(), one())};
  }

  /// x sigmoid(z), z having that derivative.
  TILEWISE_INLINE static Slope swish(F x, F z, F slope) {
    const F s = V::div(one(), V::add(one(), exp<kPrecision, V>(negative(z))));
    const F value = V::mul(x, s);
    return {value, V::fma(V::mul(value, V::sub(one(), s)), slope, s)};
  }

  static Slope gelu(F x) {
    alignas(64) Real cdf[V::kLanes], density[V::kLanes];
    V::store(cdf, x);
    for (int i = 0; i < V::kLanes; ++i) {
      const Real lane = cdf[i];
      cdf[i] = Real{0.5} * erfc_of(lane * static_cast<Real>(-0.70710678118654752440L));
      density[i] = static_cast<Real>(0.39894228040143267794L) * exp_of(Real{-0.5} * lane * lane);
    }
    return {V::mul(x, V::load(cdf)), V::fma(x, V::load(density), V::load(cdf))};
  }

  /// 0.5 x (1 + tanh(u)) is x sigmoid(2 u).
  TILEWISE_INLINE static Slope gelu_tanh(F x) {
    const F factor = V::set1(static_cast<Real>(1.59576912160573071176L)), cubic = V::set1(static_cast<Real>(0.044715L));
    const F square = V::mul(V::mul(cubic, x), x);
    const F z = V::mul(V::mul(factor, x), V::add(square, one()));
    return swish(x, z, V::mul(factor, V::fma(square, V::set1(3), one())));
  }

  /// A NaN stays, and lets the gradient pass.
  TILEWISE_INLINE static Slope relu(F x) {
    const auto below = V::greater(V::zero(), x);
    const F step = V::select(V::greater(x, V::zero()), one(), V::zero());
    return {V::select(below, V::zero(), x), V::select(V::greater(one(), x), step, one())};
  }

  TILEWISE_INLINE static Slope activate(const device::Activation& a, F x) {
    using enum device::ActivationKind;
    switch (a.kind) {
      case silu:
        return swish(x, x, one());
      case gelu:
        return ActivationGradient::gelu(x);
      case gelu_tanh:
        return ActivationGradient::gelu_tanh(x);
      case relu:
        return ActivationGradient::relu(x);
      case relu_squared: {
        const F positive = ActivationGradient::relu(x).value;
        return {V::mul(positive, positive), V::add(positive, positive)};
      }
      case swiglu_oai: {
        const F alpha = V::set1(static_cast<Real>(a.alpha));
        return swish(x, V::mul(alpha, x), alpha);
      }
      default:
        return {x, one()};
    }
  }

  TILEWISE_INLINE static Slope clamped(const device::Activation& a, F x) {
    using enum device::ActivationClamp;
    const F limit = V::set1(static_cast<Real>(a.limit));
    const Slope input = a.clamp == before ? at_most(x, limit) : Slope{x, one()};
    const Slope active = activate(a, input.value);
    const Slope output = a.clamp == after ? at_most(active.value, limit) : Slope{active.value, one()};
    return {output.value, V::mul(V::mul(output.derivative, active.derivative), input.derivative)};
  }

  TILEWISE_INLINE static Slope clamped_up(const device::Activation& a, F x) {
    Slope up{x, one()};
    if (a.clamp != device::ActivationClamp::none) {
      const F least = V::set1(static_cast<Real>(-a.limit));
      const auto below = V::greater(least, x);
      up = at_most(x, V::set1(static_cast<Real>(a.limit)));
      up = {V::select(below, least, up.value), V::select(below, V::zero(), up.derivative)};
    }
    if (a.kind == device::ActivationKind::swiglu_oai) up.value = V::add(up.value, one());
    return up;
  }
};

}  // namespace tilewise::backends::cpu
