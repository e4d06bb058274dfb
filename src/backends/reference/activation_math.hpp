// Activations and their derivatives in Reals.
#pragma once

#include <cmath>
#include <numbers>

#include "device/common/activation.h"

namespace tilewise::backends::reference {

/// A function's value and its derivative.
template <typename Real>
struct Slope {
  Real value, derivative;
};

/// min(x, limit), which keeps a NaN.
template <typename Real>
Slope<Real> at_most(Real x, Real limit) {
  return x > limit ? Slope<Real>{limit, 0} : Slope<Real>{x, 1};
}
template <typename Real>
Slope<Real> within(Real x, Real limit) {
  return x < -limit ? Slope<Real>{-limit, 0} : at_most(x, limit);
}

template <typename Real>
Real sigmoid(Real x) {
  return 1 / (1 + std::exp(-x));
}

/// x * sigmoid(alpha * x), which is 0 for a large negative x.
template <typename Real>
Slope<Real> swish(Real x, Real alpha) {
  const Real s = sigmoid(alpha * x);
  return {x * s, s + alpha * x * s * (1 - s)};
}

template <typename Real>
Slope<Real> gelu(Real x) {
  const Real half = Real{1} / 2, cdf = half * std::erfc(-x / std::numbers::sqrt2_v<Real>);
  const Real density = std::exp(-half * x * x) * std::numbers::inv_sqrtpi_v<Real> / std::numbers::sqrt2_v<Real>;
  return {x * cdf, cdf + x * density};
}

/// 0.5 x (1 + tanh(u)) is x sigmoid(2 u).
template <typename Real>
Slope<Real> gelu_tanh(Real x) {
  const Real factor = std::sqrt(Real{8}) * std::numbers::inv_sqrtpi_v<Real>, cubic = static_cast<Real>(0.044715L);
  const Real s = sigmoid(factor * (x + cubic * x * x * x));
  return {x * s, s + x * s * (1 - s) * factor * (1 + 3 * cubic * x * x)};
}

template <typename Real>
Slope<Real> activate(const device::Activation& a, Real x) {
  using enum device::ActivationKind;
  switch (a.kind) {
    case silu:
      return swish(x, Real{1});
    case gelu:
      return reference::gelu(x);
    case gelu_tanh:
      return reference::gelu_tanh(x);
    case relu:
      return x <= 0 ? Slope<Real>{0, 0} : Slope<Real>{x, 1};
    case relu_squared:
      return x <= 0 ? Slope<Real>{0, 0} : Slope<Real>{x * x, 2 * x};
    case swiglu_oai:
      return swish(x, static_cast<Real>(a.alpha));
    default:
      return {x, 1};
  }
}

/// The activation with its clamps.
template <typename Real>
Slope<Real> clamped(const device::Activation& a, Real x) {
  const auto limit = static_cast<Real>(a.limit);
  const bool before = a.clamp == device::ActivationClamp::before, after = a.clamp == device::ActivationClamp::after;
  const Slope<Real> input = before ? at_most(x, limit) : Slope<Real>{x, 1};
  const Slope<Real> active = activate(a, input.value);
  const Slope<Real> output = after ? at_most(active.value, limit) : Slope<Real>{active.value, 1};
  return {output.value, output.derivative * active.derivative * input.derivative};
}

/// What an expert's intermediate value is, and its derivatives by gate and up.
template <typename Real>
struct Gated {
  Real value, by_gate, by_up;
};

template <typename Real>
Gated<Real> gated(const device::Activation& a, Real gate, Real up) {
  const Slope<Real> g = clamped(a, gate);
  Slope<Real> u =
      a.clamp == device::ActivationClamp::none ? Slope<Real>{up, 1} : within(up, static_cast<Real>(a.limit));
  if (a.kind == device::ActivationKind::swiglu_oai) u.value += 1;
  return {g.value * u.value, g.derivative * u.value, g.value * u.derivative};
}

}  // namespace tilewise::backends::reference
