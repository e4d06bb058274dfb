// One row of the backward pass between its products: scores to P, dO·V to dS.
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/weigh.h"

namespace tilewise::backends::cpu {

template <class C, Precision kPrecision>
struct ScoreGradients {
  using V = typename C::V;
  using F = typename V::F;
  using Real = typename V::Real;
  static constexpr auto kLowest = static_cast<Real>(sizeof(Real) == sizeof(double) ? -__DBL_MAX__ : -__FLT_MAX__);

  /// In: q·k in `p` and dout·v in `ds` over the span. Out: dropped (not yet scaled by 1/(1 - p))
  /// probabilities and dS = P * (dP - delta) through score_mod and softcap, exactly 0 where nothing is seen.
  /// dS before softcap's factor is added to row.dbias, `offset` keys from the block's first.
  [[gnu::noinline]] static void row(const RowInfo& row, const ScoreParams& params, const KeySpan& span, Real* p,
                                    Real* ds, Real* capped, Real* slopes, uint16_t* draws, int64_t offset,
                                    int64_t dbias_key_stride) {
    const int64_t begin = row.key_begin > span.key ? row.key_begin - span.key : 0;
    const int64_t end = row.key_end - span.key < span.columns ? row.key_end - span.key : span.columns;
    if (begin >= end) {
      fill_zero(p, span.columns);
      return fill_zero(ds, span.columns);
    }
    Real factor = static_cast<Real>(params.softmax_scale);
    const bool has_slope = params.functions.score_mod != nullptr;
    if (Scores<V>::modifies(params, span)) {
      Scores<V>::modify(p, span, row, params, {params.softcap > 0.0 ? capped : nullptr, has_slope ? slopes : nullptr});
      factor = 1.0f;
    }
    const bool hides = Scores<V>::may_hide(params, span);
    if (params.dropout_threshold) {
      Dropout<V>::draw_row(draws, span.key, span.columns, row, params);
      hides ? drop<true>(p, ds, span.columns, row, factor, draws, params)
            : drop<false>(p, ds, span.columns, row, factor, draws, params);
    } else {
      hides ? weigh<true>(p, ds, span.columns, row, factor) : weigh<false>(p, ds, span.columns, row, factor);
    }
    if (has_slope) multiply(ds, slopes, span.columns);
    if (begin > 0 || end < span.columns) {
      clear_outside(p, span.columns, begin, end);
      clear_outside(ds, span.columns, begin, end);
    }
    if (row.dbias)
      add_dbias(static_cast<Real*>(row.dbias) + offset * dbias_key_stride, dbias_key_stride, ds, begin, end);
    if (params.softcap > 0.0) through_softcap(ds, capped, span.columns, static_cast<Real>(1.0 / params.softcap));
  }

 private:
  /// Where a bias may hide, x becomes 0 at scores of -infinity, whatever the row's statistics are.
  template <bool kHides>
  TILEWISE_INLINE static F unless_hidden(F score, F x) {
    if constexpr (!kHides) return x;
    return V::select(V::greater(V::set1(kLowest), score), V::zero(), x);
  }

  /// The forward pass's: the score is rounded as there, and what is left is one difference.
  TILEWISE_INLINE static F weight_of(F score, F scale, F lse) {
    return exp<kPrecision, V>(V::sub(V::mul(score, scale), lse));
  }

  template <bool kHides>
  static void weigh(Real* p, Real* ds, int64_t columns, const RowInfo& row, Real factor) {
    const F scale = V::set1(factor), lse = V::set1(static_cast<Real>(row.softmax_lse));
    const F delta = V::set1(static_cast<Real>(row.delta));
    for (int64_t j = 0; j < columns; j += V::kLanes) {
      const F score = V::load(p + j), weight = weight_of(score, scale, lse);
      V::store(p + j, unless_hidden<kHides>(score, weight));
      V::store(ds + j, unless_hidden<kHides>(score, V::mul(weight, V::sub(V::load(ds + j), delta))));
    }
  }

  template <bool kHides>
  static void drop(Real* p, Real* ds, int64_t columns, const RowInfo& row, Real factor, const uint16_t* draws,
                   const ScoreParams& params) {
    const F scale = V::set1(factor), lse = V::set1(static_cast<Real>(row.softmax_lse));
    const F delta = V::set1(static_cast<Real>(row.delta));
    const F keep_scale = V::set1(static_cast<Real>(params.dropout_scale));
    for (int64_t j = 0; j < columns; j += V::kLanes) {
      const auto keep = V::at_least_u16(draws + j, params.dropout_threshold);
      const F score = V::load(p + j), weight = weight_of(score, scale, lse);
      const F dp = V::select(keep, V::mul(V::load(ds + j), keep_scale), V::zero());
      V::store(p + j, V::select(keep, unless_hidden<kHides>(score, weight), V::zero()));
      V::store(ds + j, unless_hidden<kHides>(score, V::mul(weight, V::sub(dp, delta))));
    }
  }

  /// What is 0 stays it, whatever the factor is: where a key is hidden, a slope may be a NaN.
  static void multiply(Real* x, const Real* factors, int64_t columns) {
    for (int64_t j = 0; j < columns; j += V::kLanes) {
      const F old = V::load(x + j), product = V::mul(old, V::load(factors + j));
      const F unless_above = V::select(V::greater(V::zero(), old), product, old);
      V::store(x + j, V::select(V::greater(old, V::zero()), product, unless_above));
    }
  }

  static void fill_zero(Real* x, int64_t columns) {
    for (int64_t j = 0; j < columns; j += V::kLanes) V::store(x + j, V::zero());
  }

  static void clear_outside(Real* x, int64_t columns, int64_t begin, int64_t end) {
    for (int64_t j = 0; j < begin; j += V::kLanes)
      V::store(x + j, V::select(V::first(begin - j), V::zero(), V::load(x + j)));
    for (int64_t j = end / V::kLanes * V::kLanes; j < columns; j += V::kLanes)
      V::store(x + j, V::select(V::first(end - j), V::load(x + j), V::zero()));
  }

  static void add_dbias(Real* dbias, int64_t key_stride, const Real* ds, int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) dbias[j * key_stride] += ds[j];
  }

  static void through_softcap(Real* ds, const Real* capped, int64_t columns, Real inverse) {
    for (int64_t j = 0; j < columns; j += V::kLanes) {
      const F t = V::mul(V::load(capped + j), V::set1(inverse));
      // A NaN here is a 0: where it is seen, ds is a NaN already, and elsewhere ds must stay 0.
      const F slope = V::max(V::sub(V::set1(1.0f), V::mul(t, t)), V::zero());
      V::store(ds + j, V::mul(V::load(ds + j), slope));
    }
  }
};

}  // namespace tilewise::backends::cpu
