// Where a row's weights are counted from: what keeps an online softmax exact however large its scores are.
#pragma once

#include "device/tile/fragment.h"

namespace tilewise::device {

/// A score's weight is exp2(score * scale - base), where the product is not rounded before it is subtracted: a base
/// that is rounded then shifts all of a row's weights alike.
///
/// That shift is half a unit in the base's last place: 8 where the base is below kFar. From there on two scores are
/// 16 powers of 2 apart, or equal, and all that counts is which are the greatest. Such a row is far: its scale is the
/// power of 2 that takes its greatest score's last place to kFarStep, its base is that score exactly, and its weights
/// are 1 or nothing.
struct RowReference {
  float scale, base;
  static constexpr float kFar = 0x1p28f, kFarStep = 32.0f;
  TILEWISE_INLINE static bool is_far_score(float score, float call_scale) {
    return magnitude(score) < kInfinity && magnitude(score * call_scale) >= kFar;
  }

  /// Weights of the score row_max are 2^start, as nearly as the base can say, or 1 where it is far. call_scale, which
  /// is positive, takes scores to units of log2.
  TILEWISE_INLINE static RowReference at(float row_max, float call_scale, float start) {
    if (!is_far_score(row_max, call_scale)) return {call_scale, fused_multiply_add(row_max, call_scale, -start)};
    constexpr int32_t kMantissaBits = 23, kBias = 127, kStepBits = 5, kMostBits = 254;
    static_assert(kFarStep == 1 << kStepBits);
    const int32_t biased = static_cast<int32_t>(__builtin_bit_cast(uint32_t, row_max) >> kMantissaBits & 0xFF);
    const int32_t step = minimum(2 * kBias + kMantissaBits + kStepBits - biased, kMostBits);
    const float scale = __builtin_bit_cast(float, static_cast<uint32_t>(step) << kMantissaBits);
    return {scale, row_max * scale};
  }

  /// log2 of a score's weight.
  TILEWISE_INLINE float exponent(float score) const { return fused_multiply_add(score, scale, -base); }
  TILEWISE_INLINE bool is_far(float call_scale) const { return scale != call_scale; }
  /// What weights counted from here are multiplied by to be counted from `other`: where their scales differ one of the
  /// two lies so far above that this is 0. Never from a higher one to a lower one.
  template <class Machine>
  TILEWISE_INLINE float factor_to(const RowReference& other) const {
    return scale == other.scale ? Machine::exp2(base - other.base) : 0.0f;
  }
};

/// A row's log-sum-exp as the unrounded sum of two numbers: a score as the backward pass will round it, and what is
/// left. So a key that wins alone is what it is subtracted from, however large its score.
struct alignas(8) RowLse {
  float score, rest;
  TILEWISE_INLINE float sum() const { return score + rest; }

  /// Entry `row` of what parts of the keys leave: two floats each.
  template <class Machine>
  TILEWISE_INLINE static RowLse load(const float* parts, int64_t row) {
    return Machine::load_global(reinterpret_cast<const RowLse*>(parts) + row);
  }
  template <class Machine>
  TILEWISE_INLINE void store(float* parts, int64_t row) const {
    Machine::store_global(reinterpret_cast<RowLse*>(parts) + row, *this);
  }

  /// Of weights that are counted from a base and whose sum is row_sum; {-infinity, 0} where that is 0. `natural` takes
  /// scores to natural units, natural * kLog2E to those of log2.
  template <class Machine>
  TILEWISE_INLINE static RowLse of_base(float base, float row_sum, float natural) {
    if (row_sum == 0.0f) return {-kInfinity, 0.0f};
    float exponent;
    const float mantissa = log2_of_mantissa<Machine>(row_sum, exponent);
    // What its roundings lose of a small one moves no weight by 2^-11: the rest costs a short call 2%.
    constexpr float kSmall = 0x1p12f;
    if (magnitude(base) < kSmall) return {(base + exponent) * kLn2, mantissa * kLn2};
    // Both sums and the product exactly, as two numbers each.
    const float whole = base + exponent, shared = whole - base;
    const float lost = (base - (whole - shared)) + (exponent - shared);
    const float call_scale = natural * kLog2E, inverse = Machine::reciprocal(call_scale), unit = natural * inverse;
    const float unit_rest = fused_multiply_add(-unit, call_scale, natural) * inverse, score = whole * unit;
    return {score, fused_multiply_add(whole, unit, -score) + whole * unit_rest + (lost + mantissa) * kLn2};
  }
  /// Of a row that is far: its weights are counted from the score row_max.
  template <class Machine>
  TILEWISE_INLINE static RowLse of_score(float row_max, float row_sum, float natural) {
    float exponent;
    const float mantissa = log2_of_mantissa<Machine>(row_sum, exponent);
    return {row_max * natural, (exponent + mantissa) * kLn2};
  }
  template <class Machine>
  TILEWISE_INLINE static RowLse of(const RowReference& reference, float row_sum, float natural) {
    if (!reference.is_far(natural * kLog2E)) return of_base<Machine>(reference.base, row_sum, natural);
    return of_score<Machine>(reference.base / reference.scale, row_sum, natural);
  }

  /// Joins a sink's logit; what the row's weights, divided by their sum, are then multiplied by. `seen`: whether the
  /// row has weights.
  template <class Machine>
  TILEWISE_INLINE float join_sink(float sink, bool seen) {
    if (!seen) {
      *this = {sink, 0.0f};
      return 0.0f;
    }
    const float above = (sink - score) - rest;  // of the sink, over the row
    const float less = Machine::exp2(-magnitude(above) * kLog2E), both = 1.0f + less;
    const float grown = Machine::log2(both) * kLn2, share = Machine::reciprocal(both);
    if (above > 0.0f) {
      *this = {sink, grown};
      return less * share;
    }
    rest += grown;
    return share;
  }

 private:
  /// log2 of a sum is this and `exponent`, a whole number: lg2.approx errs by 2^-22 of its answer.
  template <class Machine>
  TILEWISE_INLINE static float log2_of_mantissa(float sum, float& exponent) {
    constexpr int32_t kMantissaBits = 23, kBias = 127, kMost = 126;  // 2^-kMost is the least normal number
    const int32_t biased = static_cast<int32_t>(__builtin_bit_cast(uint32_t, sum) >> kMantissaBits & 0xFF);
    const int32_t whole = minimum(biased - kBias, kMost);
    exponent = static_cast<float>(whole);
    return Machine::log2(sum * __builtin_bit_cast(float, static_cast<uint32_t>(kBias - whole) << kMantissaBits));
  }
};

}  // namespace tilewise::device
