// Activations with their derivatives, for gradients. device/tile/activate.h has the functions alone.
#pragma once

#include "device/tile/activate.h"

namespace tilewise::device {

/// A function's value and its derivative.
struct ActivationSlope {
  float value, derivative;
};

/// sigmoid(x) and 1 - sigmoid(x), neither of which loses digits where it is small.
struct Sigmoid {
  float of, rest;
};
template <class Machine>
TILEWISE_INLINE Sigmoid sigmoid(float x) {
  const float power = Machine::exp2(-kLog2E * magnitude(x)), large = Machine::reciprocal(1.0f + power);
  const float small = power * large;
  return x < 0.0f ? Sigmoid{small, large} : Sigmoid{large, small};
}

template <class Machine>
TILEWISE_INLINE ActivationSlope swish_slope(float x, float alpha) {
  const Sigmoid s = sigmoid<Machine>(alpha * x);
  return {x * s.of, s.of + alpha * x * s.of * s.rest};
}

template <class Machine>
TILEWISE_INLINE ActivationSlope gelu_slope(float x) {
  constexpr float kSqrtHalf = 0.70710678118654752440f, kDensity = 0.39894228040143267794f;
  const float below = 0.5f * complementary_error_function(-kSqrtHalf * x);
  return {x * below, below + x * kDensity * Machine::exp2(-0.5f * kLog2E * x * x)};
}

template <class Machine>
TILEWISE_INLINE ActivationSlope gelu_tanh_slope(float x) {
  constexpr float kFactor = 1.59576912160573071175f, kCubic = 0.044715f;
  const Sigmoid s = sigmoid<Machine>(kFactor * (x + kCubic * x * x * x));
  // Where the rest is 0 the square may be infinite. An infinite x has no derivative: NaN.
  const float steep = s.of * s.rest;
  return {x * s.of, s.of + (steep == 0.0f ? 0.0f * x : x * steep * kFactor * (1.0f + 3.0f * kCubic * x * x))};
}

template <class Machine, ActivationKind kKind>
TILEWISE_INLINE ActivationSlope activation_slope(float x, float alpha) {
  using enum ActivationKind;
  if constexpr (kKind == silu) {
    return swish_slope<Machine>(x, 1.0f);
  } else if constexpr (kKind == swiglu_oai) {
    return swish_slope<Machine>(x, alpha);
  } else if constexpr (kKind == gelu) {
    return gelu_slope<Machine>(x);
  } else if constexpr (kKind == gelu_tanh) {
    return gelu_tanh_slope<Machine>(x);
  } else if constexpr (kKind == relu) {
    return x <= 0.0f ? ActivationSlope{0.0f, 0.0f} : ActivationSlope{x, 1.0f};
  } else if constexpr (kKind == relu_squared) {
    return x <= 0.0f ? ActivationSlope{0.0f, 0.0f} : ActivationSlope{x * x, 2.0f * x};
  } else {
    return {x, 1.0f};
  }
}

/// Likewise of the activation with its clamps.
template <class Machine, ActivationKind kKind, ActivationClamp kClamp>
TILEWISE_INLINE ActivationSlope clamped_slope(float x, const ActivationNumbers& numbers) {
  const bool cut = kClamp == ActivationClamp::before && x > numbers.limit;
  ActivationSlope slope = activation_slope<Machine, kKind>(cut ? numbers.limit : x, numbers.alpha);
  if (cut) slope.derivative = 0.0f;
  if (kClamp == ActivationClamp::after && slope.value > numbers.limit) slope = {numbers.limit, 0.0f};
  return slope;
}

/// Likewise of what a gate is multiplied by.
template <ActivationKind kKind, ActivationClamp kClamp>
TILEWISE_INLINE ActivationSlope up_slope(float up, const ActivationNumbers& numbers) {
  ActivationSlope slope{up, 1.0f};
  if constexpr (kClamp != ActivationClamp::none) {
    slope.value = within(up, numbers.limit);
    if (up > numbers.limit || up < -numbers.limit) slope.derivative = 0.0f;
  }
  if constexpr (kKind == ActivationKind::swiglu_oai) slope.value += 1.0f;
  return slope;
}

/// An expert's intermediate value, and the gradients of the sums that it is made of.
struct ValueSlopes {
  float value, dgate, dup;
};

/// dvalue: the value's gradient. Without a gate up alone is activated.
template <class Machine, ActivationKind kKind, ActivationClamp kClamp, bool kGated>
TILEWISE_INLINE ValueSlopes value_slopes(float gate, float up, float dvalue, const ActivationNumbers& numbers) {
  if constexpr (kGated) {
    const ActivationSlope slope = clamped_slope<Machine, kKind, kClamp>(gate, numbers);
    const ActivationSlope linear = up_slope<kKind, kClamp>(up, numbers);
    return {slope.value * linear.value, dvalue * slope.derivative * linear.value,
            dvalue * slope.value * linear.derivative};
  } else {
    const ActivationSlope slope = clamped_slope<Machine, kKind, kClamp>(up, numbers);
    return {slope.value, 0.0f, dvalue * slope.derivative};
  }
}

}  // namespace tilewise::device
