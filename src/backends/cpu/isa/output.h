// The end of a forward tile: normalise, add the sink, convert and store.
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/softmax.h"
#include "backends/cpu/kernels.hpp"

namespace tilewise::backends::cpu {

/// Stores `count` floats times `factor` as T, touching nothing beyond.
template <class V, class T>
void store_scaled(const float* from, int64_t count, float factor, T* to) {
  const typename V::F f = V::set1(factor);
  int64_t i = 0;
  for (; i + V::kLanes <= count; i += V::kLanes) V::store(to + i, V::mul(V::load(from + i), f));
  if (i == count) return;
  T part[V::kLanes];
  alignas(64) float last[V::kLanes] = {};
  for (int64_t j = i; j < count; ++j) last[j - i] = from[j];
  V::store(part, V::mul(V::load(last), f));
  for (int64_t j = i; j < count; ++j) to[j] = part[j - i];
}

template <class T>
void store_zeros(int64_t count, T* to) {
  __builtin_memset(to, 0, static_cast<size_t>(count) * sizeof(T));
}

/// The row's sum and its sink brought to one reference; reference -infinity: nothing visible.
struct RowTotal {
  float reference, sum, factor;  // outputs times factor are normalised
};

template <class V>
RowTotal total_of(float reference, float sum, bool has_sink, float sink) {
  const bool seen = reference != -__builtin_inff();
  if (!has_sink) return {reference, sum, seen && sum != 0.0f ? 1.0f / sum : 0.0f};
  const float sink_log2 = sink * kLog2E;
  if (!seen) return {sink_log2, 1.0f, 0.0f};
  if (sink_log2 > reference) {
    const float scale = __builtin_exp2f(reference - sink_log2);
    const float total = sum * scale + __builtin_exp2f(sink_log2 - sink_log2);  // 1, or NaN of an infinite sink
    return {sink_log2, total, scale / total};
  }
  const float total = sum + __builtin_exp2f(sink_log2 - reference);
  return {reference, total, 1.0f / total};
}

template <class V>
float natural_lse(const RowTotal& total) {
  if (total.reference == -__builtin_inff()) return -__builtin_inff();
  return (total.reference + __builtin_log2f(total.sum)) * kLn2;
}

/// Normalised rows to out and lse; rows of a split, unnormalised, to their partial results.
template <class V, class In>
void write_output(const ForwardTile& t, const float* out, int64_t ldo, const RowState<V>* states) {
  for (int32_t r = 0; r < t.num_rows; ++r) {
    const RowInfo& row = t.rows[r];
    const float sum = V::reduce_add(V::load(states[r].sum));
    if (row.partial) {
      __builtin_memcpy(row.partial, out + r * ldo, static_cast<size_t>(t.head_dim_v) * sizeof(float));
      row.partial[t.head_dim_v] = states[r].reference;
      row.partial[t.head_dim_v + 1] = sum;
      continue;
    }
    const RowTotal total = total_of<V>(states[r].reference, sum, t.score.has_sink, row.sink);
    const float factor = t.score.dropout_threshold ? total.factor * t.score.dropout_scale : total.factor;
    // What a row that sees nothing has summed up may be NaN: of hidden values, times 0.
    if (states[r].reference == -__builtin_inff())
      store_zeros(t.head_dim_v, static_cast<In*>(row.out));
    else
      store_scaled<V>(out + r * ldo, t.head_dim_v, factor, static_cast<In*>(row.out));
    if (row.lse) *row.lse = natural_lse<V>(total);
  }
}

}  // namespace tilewise::backends::cpu
