// From q·k to masked scores: scale, softcap, bias, ALiBi, score_mod, mask_mod, and the edges of a
// row's visible range. One row of one key block at a time.
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/math.h"
#include "backends/cpu/isa/row_functions.h"
#include "backends/cpu/kernels.hpp"
#include "device/common/params.h"

namespace tilewise::backends::cpu {

inline constexpr float kNegativeInfinity = -__builtin_inff();

template <class V>
struct Scores {
  using Real = typename V::Real;
  using F = typename V::F;

  /// A part of the cap that tanh leaves as it is, in fp64 too. Of a cap near the largest number parts vanish.
  static constexpr Real kLeastCapped = 0x1p-28f;

  /// True where scores are more than softmax_scale * q·k.
  TILEWISE_INLINE static bool modifies(const ScoreParams& p, const KeySpan& span) {
    return p.softcap > 0.0 || p.bias_type != device::kBiasNone || p.has_alibi || p.functions.score_mod ||
           asks_mask(p, span);
  }
  /// Whether -infinity may stand among scores that are in the row's range.
  TILEWISE_INLINE static bool may_hide(const ScoreParams& p, const KeySpan& span) {
    return p.bias_type != device::kBiasNone || p.functions.score_mod || asks_mask(p, span);
  }

  /// For the backward pass, where not null: the value between softcap and bias, and score_mod's derivative, 0 at hidden
  /// keys whatever it were there.
  struct Kept {
    Real *capped, *slopes;
  };

  /// Natural-unit scores of a span's keys in place. Those that don't exist are never read from the bias.
  static void modify(Real* s, const KeySpan& span, const RowInfo& row, const ScoreParams& p, const Kept& kept) {
    const int64_t count = span.columns, key = span.key;
    const int64_t valid = span.valid < count ? span.valid : count;
    const F scale = V::set1(static_cast<Real>(p.softmax_scale));
    if (p.softcap > 0.0) {
      const F cap = V::set1(static_cast<Real>(p.softcap)), inverse = V::set1(static_cast<Real>(1.0 / p.softcap));
      const F least = V::set1(kLeastCapped);
      for (int64_t j = 0; j < count; j += V::kLanes) {
        const F score = V::mul(V::load(s + j), scale), part = V::mul(score, inverse);
        const F x = V::select(V::greater(V::abs(part), least), V::mul(cap, tanh<V>(part)), score);
        V::store(s + j, x);
        if (kept.capped) V::store(kept.capped + j, x);
      }
    } else {
      for (int64_t j = 0; j < count; j += V::kLanes) V::store(s + j, V::mul(V::load(s + j), scale));
    }
    const int64_t first_bias = p.places ? 0 : key * p.bias_key_stride;
    const int32_t* const places = p.places ? p.places + key : nullptr;
    if (p.bias_type != device::kBiasNone && p.bias_type != device::kBiasBool)
      add_bias(s, valid, first_bias, places, row, p);
    if (p.has_alibi) {
      const F slope = V::set1(static_cast<Real>(-row.alibi_slope));
      F distance = V::sub(V::iota(), V::set1(static_cast<Real>(row.diagonal - key)));
      for (int64_t j = 0; j < count; j += V::kLanes) {
        if (places) distance = distances(places + j, valid - j, row.diagonal);
        V::store(s + j, V::fma(slope, V::abs(distance), V::load(s + j)));
        distance = V::add(distance, V::set1(static_cast<Real>(V::kLanes)));
      }
    }
    if (p.functions.score_mod) RowFunctions<V>::modify(s, span, row, p.functions, places, kept.slopes);
    // Whatever the numbers are.
    if (p.bias_type == device::kBiasBool)
      hide_false(s, valid, static_cast<const uint8_t*>(row.bias) + first_bias, places, p.bias_key_stride);
    if (asks_mask(p, span)) RowFunctions<V>::hide(s, span, row, p.functions, places);
    if (kept.slopes) clear_hidden(kept.slopes, s, count);
  }

  static void multiply(Real* s, int64_t count, Real factor) {
    for (int64_t j = 0; j < count; j += V::kLanes) V::store(s + j, V::mul(V::load(s + j), V::set1(factor)));
  }

  /// `hiding` outside [begin, end) of a row of `count` scores.
  static void mask(Real* s, int64_t count, int64_t begin, int64_t end, Real hiding) {
    const F hidden = V::set1(hiding);
    for (int64_t j = 0; j < begin; j += V::kLanes)
      V::store(s + j, V::select(V::first(begin - j), hidden, V::load(s + j)));
    for (int64_t j = end / V::kLanes * V::kLanes; j < count; j += V::kLanes)
      V::store(s + j, V::select(V::first(end - j), V::load(s + j), hidden));
  }

 private:
  TILEWISE_INLINE static bool asks_mask(const ScoreParams& p, const KeySpan& span) {
    return p.functions.mask_mod && !span.all_visible;
  }

  static void clear_hidden(Real* x, const Real* s, int64_t count) {
    const F hidden = V::set1(kNegativeInfinity);
    for (int64_t j = 0; j < count; j += V::kLanes) {
      const F score = V::load(s + j);
      // Above -infinity, or a NaN: whatever is not equal to it.
      V::store(x + j, score != hidden ? V::load(x + j) : V::zero());
    }
  }

  /// From the diagonal to keys that stand at `places`, of which `valid` exist.
  static F distances(const int32_t* places, int64_t valid, int32_t diagonal) {
    alignas(64) Real lanes[V::kLanes] = {};
    for (int64_t i = 0; i < V::kLanes && i < valid; ++i) lanes[i] = static_cast<Real>(places[i] - diagonal);
    return V::load(lanes);
  }

  static void add_bias(Real* s, int64_t valid, int64_t first, const int32_t* places, const RowInfo& row,
                       const ScoreParams& p) {
    const auto add = [&](const auto* bias) { add_values(s, valid, bias + first, places, p.bias_key_stride); };
    if (p.bias_type == device::kBiasF32) return add(static_cast<const float*>(row.bias));
    // Else it is q's type.
    if constexpr (sizeof(Real) == sizeof(double)) {
      add(static_cast<const double*>(row.bias));
    } else if (p.bias_type == device::kBiasBf16) {
      add(static_cast<const Bf16*>(row.bias));
    } else {
      add(static_cast<const F16*>(row.bias));
    }
  }

  template <class T>
  static void add_values(Real* s, int64_t valid, const T* bias, const int32_t* places, int64_t step) {
    int64_t j = 0;
    if (step == 1 && !places)
      for (; j + V::kLanes <= valid; j += V::kLanes) V::store(s + j, V::add(V::load(s + j), V::load(bias + j)));
    while (j < valid) {  // strided, broadcast, selected, or the last vector: gathered through a small buffer
      T part[V::kLanes] = {};
      const int64_t n = valid - j < V::kLanes ? valid - j : V::kLanes;
      for (int64_t i = 0; i < n; ++i) part[i] = bias[(places ? places[j + i] : j + i) * step];
      V::store(s + j, V::add(V::load(s + j), V::load(part)));
      j += n;
    }
  }

  static void hide_false(Real* s, int64_t valid, const uint8_t* bias, const int32_t* places, int64_t step) {
    for (int64_t j = 0; j < valid; ++j)
      if (!bias[(places ? places[j] : j) * step]) s[j] = kNegativeInfinity;
  }
};

}  // namespace tilewise::backends::cpu
