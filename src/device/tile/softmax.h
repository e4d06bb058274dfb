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
    const float row_max = row_max_[slot];
    return RowLse::of<Machine>(far, far ? row_max : base(slot, row_max * scale, far), row_sum[slot], natural);
  }

  /// P = exp2(S * scale - base), in the place of S. Rescales O where a reference moves. The scale takes scores to units
  /// of log2 and is positive.
  template <class Out>
  TILEWISE_INLINE void update(Scores& S, Out& O, float scale) {
    RowValues<kSlots> highest, bases;
    highest.fill(-kInfinity);
    S.for_each(0, [&](int slot, int, auto&& x) { highest[slot] = higher(highest[slot], x); });
    bool moves = false;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      bases[slot] = row_max_[slot] * scale;
      // A row that is far, or has seen nothing, is looked at in any case: so others' bases are what they are.
      moves |= passed(highest[slot], bases[slot], scale);
      moves |= magnitude(bases[slot]) >= RowReference::kFar;
    }
    if (Machine::any(moves)) {
      move_references(highest, bases, O, scale);
      subtract_far(S, scale);
    }
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
  /// What exponents subtract, of row_max times scale: worked out for each tile rather than kept, so that a row has one
  /// register. 0 while it has seen nothing, and where it is far, whose row_max is subtracted from the scores
  /// themselves.
  TILEWISE_INLINE float base(int slot, float product, bool far) const {
    return (far | (row_max_[slot] == -kInfinity)) ? 0.0f : product;
  }
  /// Whether a score moves the reference of a row that is not far. Where it has seen nothing every score does but one
  /// of -infinity.
  TILEWISE_INLINE static bool passed(float score, float product, float scale) {
    return fused_multiply_add(score, scale, -product) > kSlack;
  }
  TILEWISE_INLINE void subtract_far(Scores& S, float scale) const {
    RowValues<kSlots> less;
    bool any = false;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      const bool far = is_far(slot, scale);
      less[slot] = far ? row_max_[slot] : 0.0f;
      any |= far;
    }
    if (!Machine::any(any)) return;
    S.for_each(0, [&](int slot, int, auto&& x) { x = x - less[slot]; });
  }

  /// Of selects, not branches: it is run for the first tile of each block, and a short call is little else.
  template <class Out>
  TILEWISE_INLINE void move_references(RowValues<kSlots>& highest, RowValues<kSlots>& bases, Out& O, float scale) {
    reduce_rows<Machine, typename Scores::FragmentLayout>(highest, [](float a, float b) { return maximum(a, b); });
    typename Out::PerRow factor;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      const float row_max = row_max_[slot], product = bases[slot];
      const bool was_far = is_far(slot, scale);
      // Rows that are near keep theirs, so that a row's bits don't depend on the rows beside it.
      const bool moves = was_far ? highest[slot] > row_max : passed(highest[slot], product, scale);
      const float moved = moves ? highest[slot] : row_max, moved_product = moved * scale;
      row_max_[slot] = moved;
      const bool far = is_far(slot, scale);
      bases[slot] = base(slot, moved_product, far);
      // Beside a row that is far what came before it counts for nothing.
      const bool counts = !was_far & !far & (row_max != -kInfinity);
      const float rescaled = counts ? Machine::exp2(product - moved_product) : 0.0f;
      factor[slot] = moves ? rescaled : 1.0f;
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
