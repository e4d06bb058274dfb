// One row of scores to one row of probabilities: what the forward kernels share.
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/dropout.h"
#include "backends/cpu/isa/gemm.h"
#include "backends/cpu/isa/scores.h"
#include "backends/cpu/isa/softmax.h"

namespace tilewise::backends::cpu {

/// Where a KeySpan may start: at a panel, and at a group of the dropout map's 32 keys.
template <class V>
inline constexpr int64_t kSpanKeys = kPanel<V> > 32 ? kPanel<V> : 32;

template <class C, Precision kPrecision>
struct Weigh {
  using V = typename C::V;
  using Real = typename V::Real;
  using RowSoftmax = Softmax<C, kPrecision>;

  /// `scores` (q·k) are overwritten; `probabilities` become an A operand, dropout applied, times the values' scales
  /// where these are not null. Returns what the row's accumulated outputs must be multiplied by. Not inlined: one for
  /// all element types and ways of reading keys, it is a fifth of the kernels' code where each has its own.
  [[gnu::noinline]] static Real row(const RowInfo& row, const ScoreParams& p, const KeySpan& span, Real* scores,
                                    RowState<V>& state, Real* probabilities, uint16_t* draws,
                                    const Real* value_scales = nullptr) {
    const int64_t begin = row.key_begin > span.key ? row.key_begin - span.key : 0;
    const int64_t end = row.key_end - span.key < span.columns ? row.key_end - span.key : span.columns;
    if (begin >= end) {
      RowSoftmax::clear(probabilities, span.columns);
      return 1.0f;
    }
    Real factor = static_cast<Real>(p.softmax_scale);
    if (Scores<V>::modifies(p, span)) {
      Scores<V>::modify(scores, span, row, p, {});
      factor = 1.0f;
    }
    if (factor == 0.0f) {  // the one factor that can't turn an infinity into "hidden"
      Scores<V>::multiply(scores, span.columns, factor);
      factor = 1.0f;
    }
    // Hidden scores become -infinity with the factor's product. A row is rounded alike whether or
    // not its span reaches past what it sees, so results don't depend on the rows beside it.
    if (begin > 0 || end < span.columns)
      Scores<V>::mask(scores, span.columns, begin, end, factor > 0.0f ? kNegativeInfinity : -kNegativeInfinity);
    const Real rescale = RowSoftmax::update(scores, span.columns, factor, state, probabilities, value_scales);
    if (p.dropout_threshold) {
      Dropout<V>::draw_row(draws, span.key, span.columns, row, p);
      RowSoftmax::drop(probabilities, span.columns, draws, p.dropout_threshold);
    }
    return rescale;
  }
};

}  // namespace tilewise::backends::cpu
