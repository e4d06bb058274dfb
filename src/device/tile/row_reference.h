// Where a row's weights are counted from: what keeps an online softmax exact however large its scores are.
#pragma once

#include "device/tile/fragment.h"

namespace tilewise::device {

/// A score's weight is exp2(score * scale - base), where the product is not rounded before it is subtracted: a base
/// that is rounded then shifts all of a row's weights alike.
///
/// That shift is half a unit in the base's last place: 8 where the base is below kFar. From there on two scores are
/// 16 powers of 2 apart, or equal. Such a row is far: its greatest score is subtracted from the others before they are
/// scaled, and its weights are 1 or nearly nothing.
struct RowReference {
  static constexpr float kFar = 0x1p28f;
  /// scale: from scores to units of log2.
  TILEWISE_INLINE static bool is_far_score(float score, float scale) {
    const bool finite = magnitude(score) < kInfinity, large = magnitude(score * scale) >= kFar;
    return finite & large;  // no branch
  }
  /// Not of a score that is no number, nor of an infinite one.
  TILEWISE_INLINE static bool is_near_score(float score, float scale) { return magnitude(score * scale) < kFar; }
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

  /// Of weights whose sum is row_sum; {-infinity, 0} where that is 0. They are counted from a base, or where the row is
  /// far from a score. `natural` takes scores to natural units, natural * kLog2E to those of log2.
  template <class Machine>
  TILEWISE_INLINE static RowLse of(bool is_far, float base_or_score, float row_sum, float natural) {
    float exponent;
    const float mantissa = log2_of_mantissa<Machine>(row_sum, exponent), base = base_or_score;
    RowLse lse = small(base, exponent, mantissa);
    if (is_far | !is_small_base(base)) {
      lse = is_far ? RowLse{base * natural, (exponent + mantissa) * kLn2}
                   : large<Machine>(base, exponent, mantissa, natural);
    }
    const bool sees = row_sum != 0.0f;
    return {sees ? lse.score : -kInfinity, sees ? lse.rest : 0.0f};
  }

  /// Of a base whose roundings move no weight by 2^-11, and of a row that is not far and has a sum: what others cost
  /// is 2% of a short call.
  TILEWISE_INLINE static bool is_small_base(float base) { return magnitude(base) < 0x1p12f; }
  template <class Machine>
  TILEWISE_INLINE static RowLse small(float base, float row_sum) {
    float exponent;
    const float mantissa = log2_of_mantissa<Machine>(row_sum, exponent);
    return small(base, exponent, mantissa);
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
      const float nothing = sink - sink;  // but of an infinite sink, which leaves no number
      *this = {sink, grown + nothing};
      return fused_multiply_add(less, share, nothing);
    }
    rest += grown;
    return share;
  }

 private:
  /// Products are rounded, lest a compiler joins them with the sum of both where it sees that.
  TILEWISE_INLINE static RowLse small(float base, float exponent, float mantissa) {
    return {rounded_product(base + exponent, kLn2), rounded_product(mantissa, kLn2)};
  }
  /// Both sums and the product exactly, as two numbers each.
  template <class Machine>
  TILEWISE_INLINE static RowLse large(float base, float exponent, float mantissa, float natural) {
    const float whole = base + exponent, shared = whole - base;
    const float lost = (base - (whole - shared)) + (exponent - shared);
    const float call_scale = natural * kLog2E, inverse = Machine::reciprocal(call_scale), unit = natural * inverse;
    const float unit_rest = fused_multiply_add(-unit, call_scale, natural) * inverse, score = whole * unit;
    return {score, fused_multiply_add(whole, unit, -score) + whole * unit_rest + (lost + mantissa) * kLn2};
  }
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
