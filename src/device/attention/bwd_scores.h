// The element-wise part of the backward pass, from S and dP to P and dS. Rows may be queries (for dq and dbias) or
// keys (for dk and dv); the caller says which element is which.
#pragma once

#include "device/attention/scores.h"
#include "device/attention/tensor_rows.h"

namespace tilewise::device {

/// What a query contributes to P and dS.
struct QueryStatistics {
  float lse;    // +infinity where it sees nothing, so that its P is 0
  float delta;  // rowsum(out * dout) - dlse
};

/// Of a kernel's parameters that have softmax_lse and delta, as they lie in memory.
template <class Machine, class Params>
TILEWISE_INLINE QueryStatistics load_plain_statistics(const Params& p, const Sequence& s, int64_t batch, int64_t head,
                                                      int64_t i) {
  if (i >= s.seqlen_q) return {kInfinity, 0.0f};
  return {Machine::load_global(p.softmax_lse.data + lse_offset(p.softmax_lse, s, batch, i, head)),
          Machine::load_global(p.delta + dense_row(p.shape, batch, i, head))};
}
/// Those, once they have come, as P and dS take them.
template <class Machine>
TILEWISE_INLINE QueryStatistics usable(const QueryStatistics& plain) {
  return {plain.lse == -kInfinity ? kInfinity : with_plain_nan<Machine>(plain.lse),
          with_plain_nan<Machine>(plain.delta)};
}
template <class Machine, class Params>
TILEWISE_INLINE QueryStatistics load_statistics(const Params& p, const Sequence& s, int64_t batch, int64_t head,
                                                int64_t i) {
  return usable<Machine>(load_plain_statistics<Machine>(p, s, batch, head, i));
}

/// P of a score in natural units. What is subtracted is rounded as the forward pass rounded it, and before any other
/// factor: of a key that wins alone nothing is left, and P is 1.
template <class Machine>
TILEWISE_INLINE float weight_of(float score, float lse) {
  return Machine::exp2((score - lse) * kLog2E);
}

/// P of one position, before dropout, and what dS = P * (dP - delta) * mod_slope * slope needs beside it.
struct Probability {
  float p;
  float slope;      // softcap's derivative, 1 without softcap
  bool hidden;      // by a bias or a function: no gradient comes from here, whatever it is computed from
  float mod_slope;  // score_mod's, 1 without score_mod
};

/// From the product q.k, of a kernel's parameters.
template <class Machine, auto C, class Params>
TILEWISE_INLINE Probability probability_of(const Params& params, const RowOf<C>& row, int32_t seqlen_k, int32_t key,
                                           float product, float lse) {
  if constexpr (C.plain_scale) {
    return {weight_of<Machine>(rounded_product(product, params.score.softmax_scale), lse), 1.0f, false, 1.0f};
  }
  ScoreSlopes slopes;
  const float score = full_score<Machine, C, true>(params, row, seqlen_k, key, product, &slopes);
  const float slope = C.softcap ? 1.0f - slopes.capped * slopes.capped : 1.0f;
  constexpr bool kMayHide = C.bias_type != kBiasNone || FunctionsOf<C>::kModifies;
  return {weight_of<Machine>(score, lse), slope, kMayHide && score == -kInfinity, slopes.mod_slope};
}

}  // namespace tilewise::device
