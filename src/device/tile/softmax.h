// The online softmax of a block's rows. A row's reference is a score that it had, not always its highest: it moves when
// a score passes it by kSlack. So P stays below 2^8, exact in fp32 sums and far inside f16's range.
#pragma once

#include "device/tile/fragment.h"
#include "device/tile/row_reference.h"

namespace tilewise::device {

template <class Scores>
class OnlineSoftmax {
  using Machine = typename Scores::Ops::Machine;
  static constexpr int kSlots = Scores::kSlots;
  static constexpr bool kPacked = Scores::kPacked;
  /// In units of log2: how far a score's weight may pass 1.
  static constexpr float kSlack = 8.0f;

 public:
  RowValues<kSlots> row_sum;  // this lane's part

  /// Rows that have seen nothing.
  TILEWISE_INLINE void clear() {
    row_max_.fill(-kInfinity);
    row_sum.fill(0.0f);
    if constexpr (kPacked) sums_.clear();
  }

  /// The log-sum-exp of a row whose sum is complete. `natural` takes scores to natural units.
  TILEWISE_INLINE RowLse lse(int slot, float natural) const {
    const float scale = natural * kLog2E;
    const bool far = is_far(slot, scale);
    return RowLse::of<Machine>(far, far ? row_max_[slot] : base(slot, scale), row_sum[slot], natural);
  }

  /// P = exp2(S * scale - base), in the place of S. Rescales O where a reference moves. The scale takes scores to units
  /// of log2 and is positive.
  template <class Out>
  TILEWISE_INLINE void update(Scores& S, Out& O, float scale) {
    RowValues<kSlots> highest;
    highest.fill(-kInfinity);
    S.for_each(0, [&](int slot, int, auto&& x) { highest[slot] = higher(highest[slot], x); });
    bool far = false;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) far |= passed(highest[slot], slot, scale) || is_far(slot, scale);
    if (Machine::any(far)) {
      move_references(highest, O, scale);
      subtract_far(S, scale);
    }
    RowValues<kSlots> bases;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) bases[slot] = base(slot, scale);
    if constexpr (kPacked) {
      S.for_each_packed([&](int slot, auto& x) {
        const auto exponent = Scores::Accumulator::multiply_subtract(x, scale, bases[slot]);
        x[0] = Machine::exp2(exponent[0]);
        x[1] = Machine::exp2(exponent[1]);
        sums_.value[slot] += x;
      });
    } else {
      S.for_each(0, [&](int slot, int, auto&& x) {
        const float p = Machine::exp2(fused_multiply_add(x, scale, -bases[slot]));
        row_sum[slot] += p;
        x = p;
      });
    }
  }

  TILEWISE_INLINE void reduce_row_sum() {
    if constexpr (kPacked) {
      TILEWISE_UNROLL
      for (int slot = 0; slot < kSlots; ++slot) row_sum[slot] = sums_.value[slot][0] + sums_.value[slot][1];
    }
    reduce_rows<Machine, typename Scores::FragmentLayout>(row_sum, [](float a, float b) { return a + b; });
  }

 private:
  TILEWISE_INLINE bool is_far(int slot, float scale) const { return RowReference::is_far_score(row_max_[slot], scale); }
  /// What exponents subtract, worked out for each tile rather than kept: a row has one register so. 0 while it has seen
  /// nothing, and where it is far, whose row_max is subtracted from the scores themselves.
  TILEWISE_INLINE float base(int slot, float scale) const {
    return row_max_[slot] == -kInfinity || is_far(slot, scale) ? 0.0f : row_max_[slot] * scale;
  }
  /// Whether a score moves the reference of a row that is not far. Where it has seen nothing every score does but one
  /// of -infinity.
  TILEWISE_INLINE bool passed(float score, int slot, float scale) const {
    return fused_multiply_add(score, scale, -(row_max_[slot] * scale)) > kSlack;
  }
  TILEWISE_INLINE void subtract_far(Scores& S, float scale) const {
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      if (!is_far(slot, scale)) continue;
      S.for_each(0, [&](int of, int, auto&& x) { x = of == slot ? x - row_max_[slot] : x; });
    }
  }

  template <class Out>
  TILEWISE_INLINE void move_references(RowValues<kSlots>& highest, Out& O, float scale) {
    reduce_rows<Machine, typename Scores::FragmentLayout>(highest, [](float a, float b) { return maximum(a, b); });
    typename Out::PerRow factor;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      // Rows that are near keep theirs, so that a row's bits don't depend on the rows beside it.
      factor[slot] = 1.0f;
      const bool was_far = is_far(slot, scale);
      if (was_far ? highest[slot] > row_max_[slot] : passed(highest[slot], slot, scale)) {
        const bool near = row_max_[slot] != -kInfinity && !was_far;
        const float before = base(slot, scale);
        row_max_[slot] = highest[slot];
        // Beside a row that is far what came before it counts for nothing.
        factor[slot] = near && !is_far(slot, scale) ? Machine::exp2(before - base(slot, scale)) : 0.0f;
      }
      if constexpr (kPacked) {
        sums_.value[slot] *= factor[slot];
      } else {
        row_sum[slot] *= factor[slot];
      }
    }
    O.scale_rows(factor);
  }

  /// Parts of the sums where registers are added in pairs.
  struct Pairs {
    typename Scores::Pair value[kSlots];
    TILEWISE_INLINE void clear() {
      TILEWISE_UNROLL
      for (int slot = 0; slot < kSlots; ++slot) value[slot] = typename Scores::Pair{};
    }
  };
  Pairs sums_;
  RowValues<kSlots> row_max_;  // a score that the row had; -infinity until it has seen one
};

}  // namespace tilewise::device
