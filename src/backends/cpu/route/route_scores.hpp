// What routing on the CPU computes of logits: scores, weights of the chosen experts, their sum. In fp32, or f64 where
// the logits are.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "device/common/float16.h"
#include "operations/elements.hpp"
#include "operations/route/params.hpp"

namespace tilewise::backends::cpu {

using operations::route::RouteParams;

template <typename Real>
Real sigmoid(Real x) {
  return Real{1} / (Real{1} + std::exp(-x));
}

/// Below, softplus(x) is exp(x) to within Real's precision.
template <typename Real>
inline constexpr Real kExponentialBelow = std::is_same_v<Real, float> ? Real{-18} : Real{-38};

/// exp(x) would vanish long before its root.
template <typename Real>
Real sqrt_softplus(Real x) {
  if (x < kExponentialBelow<Real>) return std::exp(x / 2);
  return std::sqrt((x > 0 ? x : 0) + std::log1p(std::exp(-std::abs(x))));
}

/// In place. A NaN makes all of them NaN.
template <typename Real>
void softmax(Real* values, std::int64_t count) {
  Real greatest = values[0], sum = 0;
  for (std::int64_t i = 1; i < count; ++i) greatest = values[i] > greatest ? values[i] : greatest;
  for (std::int64_t i = 0; i < count; ++i) sum += values[i] = std::exp(values[i] - greatest);
  for (std::int64_t i = 0; i < count; ++i) values[i] /= sum;
}

template <typename Real>
void score(RouteScore score, const Real* logits, std::int64_t count, Real* scores) {
  switch (score) {
    case RouteScore::sigmoid:
      std::transform(logits, logits + count, scores, sigmoid<Real>);
      return;
    case RouteScore::sqrt_softplus:
      std::transform(logits, logits + count, scores, sqrt_softplus<Real>);
      return;
    case RouteScore::softmax:
    case RouteScore::identity:
      std::copy_n(logits, count, scores);
      if (score == RouteScore::softmax) softmax(scores, count);
      return;
  }
}

/// What the chosen weigh before normalisation, of their logits and scores.
template <typename Real>
void weigh(const RouteParams& p, const Real* logits, const Real* scores, std::int64_t count, Real* weights) {
  std::copy_n(p.weigh == RouteWeigh::score ? scores : logits, count, weights);
  if (p.weigh == RouteWeigh::softmax_of_chosen) softmax(weights, count);
  if (p.weigh == RouteWeigh::sigmoid_of_chosen) std::transform(weights, weights + count, weights, sigmoid<Real>);
}

/// What the weights are divided by. A NaN stays.
template <typename Real>
Real divisor(const RouteParams& p, const Real* weights, std::int64_t count) {
  if (p.normalise == RouteNormalise::no) return 1;
  Real sum = 0;
  for (std::int64_t j = 0; j < count; ++j) sum += weights[j];
  const auto epsilon = static_cast<Real>(p.epsilon);
  if (p.normalise == RouteNormalise::sum_plus_epsilon) return sum + epsilon;
  return sum < epsilon ? epsilon : sum;
}

/// A token's logits.
template <typename Real>
void load_logits(const operations::Matrix& from, std::int64_t token, Real* to) {
  const auto load = [&]<typename Element>(const Element* data, auto&& widen) {
    const Element* row = data + token * from.row_stride;
    for (std::int64_t e = 0; e < from.columns; ++e) to[e] = static_cast<Real>(widen(row[e * from.column_stride]));
  };
  const auto same = [](auto value) { return value; };
  switch (from.dtype) {
    case DType::bf16:
      return load(static_cast<const std::uint16_t*>(from.data), device::bf16_to_float);
    case DType::f16:
      return load(static_cast<const std::uint16_t*>(from.data), device::f16_to_float);
    case DType::f64:
      return load(static_cast<const double*>(from.data), same);
    default:
      return load(static_cast<const float*>(from.data), same);
  }
}

/// What a chosen expert's weight is multiplied by at last.
template <typename Real>
Real factor_of(const RouteParams& p, std::int64_t id) {
  const auto factor = static_cast<Real>(p.routed_scaling_factor);
  const operations::Vector& scale = p.scale_of_expert;
  if (scale.data == nullptr) return factor;
  return factor * static_cast<Real>(operations::load_element(scale.dtype, scale.data, id * scale.stride));
}

}  // namespace tilewise::backends::cpu
