// Activations of linear layers and experts on a machine's approximate exponential. common/activation.h says which.
#pragma once

#include "device/common/activation.h"
#include "device/tile/platform.h"

namespace tilewise::device {

/// What an activation's config does not say.
struct ActivationNumbers {
  float alpha, limit;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("alpha", p.alpha), visit("limit", p.limit);
  }
};

/// min(x, limit), which keeps a NaN.
TILEWISE_INLINE float at_most(float x, float limit) { return x > limit ? limit : x; }
TILEWISE_INLINE float within(float x, float limit) { return x < -limit ? -limit : at_most(x, limit); }

/// x * sigmoid(alpha * x), which is 0 for a large negative x.
template <class Machine>
TILEWISE_INLINE float swish(float x, float alpha) {
  return x * Machine::reciprocal(1.0f + Machine::exp2(-kLog2E * alpha * x));
}

template <class Machine, ActivationKind kKind>
TILEWISE_INLINE float activate(float x, float alpha) {
  using enum ActivationKind;
  if constexpr (kKind == silu) {
    return swish<Machine>(x, 1.0f);
  } else if constexpr (kKind == swiglu_oai) {
    return swish<Machine>(x, alpha);
  } else if constexpr (kKind == gelu) {
    constexpr float kSqrtHalf = 0.70710678118654752440f;
    return 0.5f * x * complementary_error_function(-kSqrtHalf * x);
  } else if constexpr (kKind == gelu_tanh) {
    // 0.5 x (1 + tanh(u)) is x sigmoid(2 u).
    constexpr float kFactor = 1.59576912160573071175f, kCubic = 0.044715f;
    return x * Machine::reciprocal(1.0f + Machine::exp2(-kLog2E * kFactor * (x + kCubic * x * x * x)));
  } else if constexpr (kKind == relu) {
    return x <= 0.0f ? 0.0f : x;
  } else if constexpr (kKind == relu_squared) {
    return x <= 0.0f ? 0.0f : x * x;
  } else {
    return x;
  }
}

/// The activation with its clamps.
template <class Machine, ActivationKind kKind, ActivationClamp kClamp>
TILEWISE_INLINE float activate_clamped(float x, const ActivationNumbers& numbers) {
  if constexpr (kClamp == ActivationClamp::before) x = at_most(x, numbers.limit);
  x = activate<Machine, kKind>(x, numbers.alpha);
  return kClamp == ActivationClamp::after ? at_most(x, numbers.limit) : x;
}

/// What an expert's intermediate value is.
template <class Machine, ActivationKind kKind, ActivationClamp kClamp>
TILEWISE_INLINE float activate_gated(float gate, float up, const ActivationNumbers& numbers) {
  if constexpr (kClamp != ActivationClamp::none) up = within(up, numbers.limit);
  if constexpr (kKind == ActivationKind::swiglu_oai) up += 1.0f;
  return activate_clamped<Machine, kKind, kClamp>(gate, numbers) * up;
}

}  // namespace tilewise::device
