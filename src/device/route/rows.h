// Elements of route's tensors as floats and integers, sums over a wave, scores of logits, and what weights are
// normalised and multiplied by.
#pragma once

#include "device/route/params.h"
#include "device/tile/element.h"
#include "device/tile/platform.h"

namespace tilewise::device {

/// A wave's token; the last one again, of which nothing is stored, past the end.
struct TokenPlace {
  int64_t token;
  bool own;
};
template <class Machine, auto C>
TILEWISE_INLINE TokenPlace token_place(const RouteShape& shape, int wave) {
  const int64_t wanted = static_cast<int64_t>(Machine::block()) * C.waves + wave;
  return {minimum<int64_t>(wanted, shape.tokens - 1), wanted < shape.tokens};
}

template <class Machine>
TILEWISE_INLINE float load_number(const RouteTensor& t, int32_t type, int64_t row, int64_t column) {
  const int64_t at = row * t.row_stride + column * t.column_stride;
  if (type == kRouteF32) return Machine::load_global(static_cast<const float*>(t.data) + at);
  const uint32_t bits = Machine::load_global(static_cast<const uint16_t*>(t.data) + at);
  return type == kRouteBf16 ? element_to_float<kBf16>(bits) : element_to_float<kF16>(bits);
}
template <class Machine>
TILEWISE_INLINE void store_number(const RouteTensor& t, int32_t type, int64_t row, int64_t column, float value) {
  const int64_t at = row * t.row_stride + column * t.column_stride;
  if (type == kRouteF32) return Machine::store_global(static_cast<float*>(t.data) + at, value);
  const uint32_t bits =
      type == kRouteBf16 ? Machine::template pack<kBf16>(value, 0.0f) : Machine::template pack<kF16>(value, 0.0f);
  Machine::store_global(static_cast<uint16_t*>(t.data) + at, static_cast<uint16_t>(bits));
}

template <class Machine>
TILEWISE_INLINE int64_t load_id(const RouteTensor& t, int64_t row, int64_t column) {
  const int64_t at = row * t.row_stride + column * t.column_stride;
  if (t.type == kRouteI64) return Machine::load_global(static_cast<const int64_t*>(t.data) + at);
  return Machine::load_global(static_cast<const int32_t*>(t.data) + at);
}
template <class Machine>
TILEWISE_INLINE void store_id(const RouteTensor& t, int64_t row, int64_t column, int32_t id) {
  const int64_t at = row * t.row_stride + column * t.column_stride;
  if (t.type == kRouteI64) return Machine::store_global(static_cast<int64_t*>(t.data) + at, static_cast<int64_t>(id));
  Machine::store_global(static_cast<int32_t*>(t.data) + at, id);
}

/// Of all lanes, in the same order every time.
template <class Machine>
TILEWISE_INLINE float sum_over_wave(float value) {
  TILEWISE_UNROLL
  for (int bit = 1; bit < Machine::kLanes; bit *= 2) value += Machine::shuffle_xor(value, bit);
  return value;
}
/// Of those that are numbers.
template <class Machine>
TILEWISE_INLINE float highest_over_wave(float value) {
  TILEWISE_UNROLL
  for (int bit = 1; bit < Machine::kLanes; bit *= 2) value = higher(value, Machine::shuffle_xor(value, bit));
  return value;
}

template <class Machine>
TILEWISE_INLINE float natural_exp(float x) {
  return Machine::exp2(x * kLog2E);
}

template <class Machine>
TILEWISE_INLINE float sigmoid(float x) {
  return 1.0f / (1.0f + natural_exp<Machine>(-x));
}

/// log(1 + y) of y from 0 to 1: 2 artanh(y / (2 + y)), whose argument is at most 1/3, so that eight terms suffice.
/// log2() is good to an absolute error alone, and what follows small numbers is to keep their digits.
TILEWISE_INLINE float log_one_plus(float y) {
  const float z = y / (2.0f + y), square = z * z;
  float sum = 1.0f / 17.0f;
  TILEWISE_UNROLL
  for (int n = 15; n > 0; n -= 2) sum = sum * square + 1.0f / static_cast<float>(n);
  return 2.0f * z * sum;
}

/// Below, softplus(x) is exp(x) in fp32; exp(x) itself would vanish long before its root.
inline constexpr float kExponentialBelow = -18.0f;

template <class Machine>
TILEWISE_INLINE float sqrt_softplus(float x) {
  if (x < kExponentialBelow) return natural_exp<Machine>(0.5f * x);
  return square_root((x > 0.0f ? x : 0.0f) + log_one_plus(natural_exp<Machine>(-magnitude(x))));
}

/// Softmax over some logits: what is subtracted before the exponential, and one over the sum of these. A NaN reaches
/// every weight, and so do logits that all are -infinity.
struct SoftmaxOver {
  float greatest = -kInfinity, inverse = 1.0f;

  template <class Machine>
  TILEWISE_INLINE float exponential(float x) const {
    return natural_exp<Machine>(x - greatest);
  }
  template <class Machine>
  TILEWISE_INLINE float weight(float x) const {
    return exponential<Machine>(x) * inverse;
  }
};

/// s of one logit.
template <class Machine, int kScore>
TILEWISE_INLINE float score_of(float x, const SoftmaxOver& all) {
  if constexpr (kScore == kScoreSoftmax) return all.weight<Machine>(x);
  if constexpr (kScore == kScoreSigmoid) return sigmoid<Machine>(x);
  if constexpr (kScore == kScoreSqrtSoftplus) return sqrt_softplus<Machine>(x);
  return x;
}

/// What a chosen expert weighs before normalisation.
template <class Machine, auto C>
TILEWISE_INLINE float weight_of(float x, const SoftmaxOver& all, const SoftmaxOver& chosen) {
  if constexpr (C.weigh == kWeighSoftmaxOfChosen) return chosen.weight<Machine>(x);
  if constexpr (C.weigh == kWeighSigmoidOfChosen) return sigmoid<Machine>(x);
  return score_of<Machine, C.score>(x, all);
}

/// What weights are divided by. A NaN stays.
TILEWISE_INLINE float divisor_of(const RouteFactors& factors, float sum) {
  if (factors.normalise == kNormaliseNo) return 1.0f;
  if (factors.normalise == kNormaliseSumPlusEpsilon) return sum + factors.epsilon;
  return sum < factors.epsilon ? factors.epsilon : sum;
}

template <class Machine>
TILEWISE_INLINE float factor_of(const RouteFactors& factors, const RouteTensor& scale_of_expert, int64_t id) {
  if (!scale_of_expert.data) return factors.routed_scaling_factor;
  return factors.routed_scaling_factor * load_number<Machine>(scale_of_expert, scale_of_expert.type, 0, id);
}

}  // namespace tilewise::device
