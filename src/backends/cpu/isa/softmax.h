// The online softmax of one row. Its reference is set by the row's first block and moved only
// when the sum says that a score exceeded it by far: probabilities then lie in fp32's and bf16's exponent range
// instead of [0, 1], and the accumulators are almost never rescaled.
//
// A score is rounded once, in natural units, and the reference is one of them: whatever their size, equal scores have
// equal weights and the greatest one of a block that sets the reference weighs exactly 1.
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/math.h"

namespace tilewise::backends::cpu {

/// A row's running state. Sums are kept per lane and folded once at the end.
template <class V>
struct RowState {
  using Real = typename V::Real;
  alignas(64) Real sum[V::kLanes];
  Real rounded_sum[V::kLanes];  // of the weights as the product with the values has them; see Softmax::Sums
  Real reference;               // a score as rounded; -infinity until a visible one was seen
};

template <class C, Precision kPrecision>
struct Softmax {
  using V = typename C::V;
  using F = typename V::F;
  using Real = typename V::Real;
  /// Lanes' sums of exact and of rounded weights. A block whose largest score is the reference counts as exact: the
  /// greatest weight there is 1, which rounds to itself.
  struct Sums {
    F exact, rounded;
  };
  // A lane's sum past 2^40 moves the reference: what it sums then starts from 1 again. Far below
  // fp32's 2^127 even times |v| of 2^60, and far above what ordinary scores reach.
  static constexpr float kLargestSum = 0x1p40f;

  /// Turns products (times `factor` they are scores) into unnormalised
  /// probabilities: Reals in place, and as an A operand in `p`. Returns what the accumulated
  /// outputs must be multiplied by (1 nearly always). `scales`, where not null, are the values': the operand, not
  /// the sum, is multiplied by them.
  static Real update(Real* s, int64_t count, Real factor, RowState<V>& state, Real* p, const Real* scales) {
    const F scale = V::set1(factor);
    const bool first = state.reference == kUnset;
    if (first) {
      state.reference = scaled_max(s, count, scale);
      if (state.reference == kUnset) {
        if (all_hidden(s, count, scale)) {
          clear(p, count);
          return 1.0f;
        }
        state.reference = 0.0f;  // NaN alone: seen, and every sum and output becomes one
      }
    }
    const Sums before{V::load(state.sum), V::load(state.rounded_sum)};
    const Sums sums = exponentiate(s, count, scale, state.reference, before, p, scales);
    store({sums.exact, first ? sums.exact : sums.rounded}, state);
    return V::any(V::greater(sums.exact, V::set1(kLargestSum)))
               ? move_reference(s, count, scale, state, before, p, scales)
               : 1.0f;
  }

  static void start(RowState<V>& state) {
    store({V::zero(), V::zero()}, state);
    state.reference = kUnset;
  }

  static void clear(Real* p, int64_t count) {
    for (int64_t unit = 0; unit < count / C::kPair; unit += V::kLanes) V::store(p + unit, V::zero());
  }

  /// Zeroes the dropped probabilities of an A operand whose fp32 values are those of update().
  static void drop(Real* p, int64_t count, const uint16_t* draws, uint32_t threshold) {
    for (int64_t j = 0; j < count; j += V::kLanes * C::kPair) C::keep_row(p + j / C::kPair, draws + j, threshold);
  }

 private:
  static constexpr float kUnset = -__builtin_inff();

  TILEWISE_INLINE static void store(const Sums& sums, RowState<V>& state) {
    V::store(state.sum, sums.exact);
    V::store(state.rounded_sum, sums.rounded);
  }

  /// p = e^(s * scale - reference), the product rounded first; returns `sums` with them added, lane by lane.
  TILEWISE_INLINE static Sums exponentiate(const Real* s, int64_t count, F scale, Real reference, Sums sums, Real* p,
                                           const Real* scales) {
    const F top = V::set1(reference);
    for (int64_t j = 0; j < count; j += 2 * V::kLanes) {
      const F x0 = exp<kPrecision, V>(V::sub(V::mul(V::load(s + j), scale), top));
      const F x1 = exp<kPrecision, V>(V::sub(V::mul(V::load(s + j + V::kLanes), scale), top));
      sums.exact = V::add(sums.exact, V::add(x0, x1));
      if (scales) {  // the rounding is that of products, of which no sum is the one that divides
        sums.rounded = V::add(sums.rounded, V::add(x0, x1));
        C::store_row(p, j, V::mul(x0, V::load(scales + j)), V::mul(x1, V::load(scales + j + V::kLanes)));
      } else {
        if constexpr (C::kPair > 1) sums.rounded = C::add_rounded(sums.rounded, x0, x1);
        C::store_row(p, j, x0, x1);
      }
    }
    if constexpr (C::kPair == 1) sums.rounded = sums.exact;
    return sums;
  }

  /// The rare way: this block again, from its own largest score. Returns the outputs' rescale.
  [[gnu::noinline]] static Real move_reference(const Real* s, int64_t count, F scale, RowState<V>& state, Sums before,
                                               Real* p, const Real* scales) {
    const Real moved = scaled_max(s, count, scale);
    const Real rescale = exp_scalar(state.reference - moved);
    state.reference = moved;
    const F block = exponentiate(s, count, scale, moved, {V::zero(), V::zero()}, p, scales).exact;
    const F factor = V::set1(rescale);
    store({V::fma(before.exact, factor, block), V::fma(before.rounded, factor, block)}, state);
    return rescale;
  }

  /// The largest score that is a number, -infinity where there is none: max returns its second operand where one
  /// is NaN. A NaN needs no reference, it reaches the sum.
  static Real scaled_max(const Real* s, int64_t count, F scale) {
    F m = V::set1(kUnset);
    for (int64_t j = 0; j < count; j += V::kLanes) m = V::max(V::mul(V::load(s + j), scale), m);
    return V::reduce_max(m);
  }

  /// Of a block without a number: whether it is without a NaN too.
  [[gnu::noinline]] static bool all_hidden(const Real* s, int64_t count, F scale) {
    F sum = V::zero();
    for (int64_t j = 0; j < count; j += V::kLanes) sum = V::add(sum, V::mul(V::load(s + j), scale));
    return V::reduce_add(sum) == kUnset;
  }

  static Real exp_scalar(Real x) {
    alignas(64) Real lanes[V::kLanes];
    V::store(lanes, exp<best_precision<V>(), V>(V::set1(x)));
    return lanes[0];
  }
};

}  // namespace tilewise::backends::cpu
