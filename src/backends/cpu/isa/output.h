// The end of a forward tile: normalise, add the sink, convert and store.
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/softmax.h"
#include "backends/cpu/kernels.hpp"

namespace tilewise::backends::cpu {

/// Stores `count` Reals times `factor` as T, touching nothing beyond.
template <class V, class T>
void store_scaled(const typename V::Real* from, int64_t count, typename V::Real factor, T* to) {
  const typename V::F f = V::set1(factor);
  int64_t i = 0;
  for (; i + V::kLanes <= count; i += V::kLanes) V::store(to + i, V::mul(V::load(from + i), f));
  if (i == count) return;
  T part[V::kLanes];
  alignas(64) typename V::Real last[V::kLanes] = {};
  for (int64_t j = i; j < count; ++j) last[j - i] = from[j];
  V::store(part, V::mul(V::load(last), f));
  for (int64_t j = i; j < count; ++j) to[j] = part[j - i];
}

template <class T>
void store_zeros(int64_t count, T* to) {
  __builtin_memset(to, 0, static_cast<size_t>(count) * sizeof(T));
}

/// The row's sum and its sink brought to one reference; reference -infinity: nothing visible.
template <class Real>
struct RowTotal {
  Real reference, sum, factor;  // outputs times factor are normalised
};

template <class Real>
TILEWISE_INLINE RowTotal<Real> total_of(Real reference, Real sum, bool has_sink, Real sink) {
  const bool seen = reference != -__builtin_inff();
  if (!has_sink) return {reference, sum, seen && sum != 0 ? 1 / sum : 0};
  if (!seen) return {sink, 1, 0};
  if (sink > reference) {
    const Real scale = exp_of(reference - sink);
    const Real total = sum * scale + exp_of(sink - sink);  // 1, or NaN of an infinite sink
    return {sink, total, scale / total};
  }
  const Real total = sum + exp_of(sink - reference);
  return {reference, total, 1 / total};
}

template <class Real>
TILEWISE_INLINE Real natural_lse(const RowTotal<Real>& total) {
  if (total.reference == -__builtin_inff()) return -__builtin_inff();
  return total.reference + log_of(total.sum);
}

/// What outputs are multiplied by before their row's sum divides them. Weights are rounded before they meet the values,
/// a row's greatest too where it is not the reference: with one key that weighs nearly all, out would be off by up to
/// half a unit of bf16 more. Divided by the rounded weights' sum it is that key's value.
template <class V>
typename V::Real undo_rounding(const RowState<V>& state, typename V::Real sum) {
  const typename V::Real rounded = V::reduce_add(V::load(state.rounded_sum));
  return rounded != 0 ? sum / rounded : 1;
}

/// Normalised rows to out and lse; rows of a split, unnormalised, to their partial results.
template <class V, class In>
void write_output(const ForwardTile& t, const typename V::Real* out, int64_t ldo, const RowState<V>* states) {
  using Real = typename V::Real;
  for (int32_t r = 0; r < t.num_rows; ++r) {
    const RowInfo& row = t.rows[r];
    const Real sum = V::reduce_add(V::load(states[r].sum)), correction = undo_rounding(states[r], sum);
    if (auto* partial = static_cast<Real*>(row.partial)) {
      store_scaled<V>(out + r * ldo, t.head_dim_v, correction, partial);
      partial[t.head_dim_v] = states[r].reference;
      partial[t.head_dim_v + 1] = sum;
      continue;
    }
    const RowTotal<Real> total = total_of(states[r].reference, sum, t.score.has_sink, static_cast<Real>(row.sink));
    const double scale = t.score.dropout_threshold ? t.value_scale * t.score.dropout_scale : t.value_scale;
    const Real factor = total.factor * static_cast<Real>(scale) * correction;
    // What a row that sees nothing has summed up may be NaN: of hidden values, times 0.
    if (states[r].reference == -__builtin_inff())
      store_zeros(t.head_dim_v, static_cast<In*>(row.out));
    else
      store_scaled<V>(out + r * ldo, t.head_dim_v, factor, static_cast<In*>(row.out));
    if (row.lse) *static_cast<Real*>(row.lse) = natural_lse(total);
  }
}

}  // namespace tilewise::backends::cpu
