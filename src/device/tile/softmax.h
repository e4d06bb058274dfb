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

  /// scale: of the call's scores, to units of log2. It is positive.
  TILEWISE_INLINE void clear(float scale) {
    scales_.fill(scale);
    bases_.fill(-kInfinity);
    row_sum.fill(0.0f);
    if constexpr (kPacked) sums_.clear();
  }

  /// Where a row's weights are counted from; its base is 0 while no score was seen.
  TILEWISE_INLINE RowReference reference(int slot) const {
    return {scales_[slot], bases_[slot] == -kInfinity ? 0.0f : bases_[slot]};
  }

  /// P = exp2(S * scale - base), in the place of S. Rescales O where a reference moves.
  template <class Out>
  TILEWISE_INLINE void update(Scores& S, Out& O, float scale) {
    RowValues<kSlots> highest;
    highest.fill(-kInfinity);
    S.for_each(0, [&](int slot, int, auto&& x) { highest[slot] = higher(highest[slot], x); });
    bool far = false;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) far |= passed(highest[slot], slot);
    if (Machine::any(far)) move_references(highest, O, scale);
    RowValues<kSlots> base;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) base[slot] = reference(slot).base;
    if constexpr (kPacked) {
      S.for_each_packed([&](int slot, auto& x) {
        const auto exponent = Scores::Accumulator::multiply_subtract(x, scales_[slot], base[slot]);
        x[0] = Machine::exp2(exponent[0]);
        x[1] = Machine::exp2(exponent[1]);
        sums_.value[slot] += x;
      });
    } else {
      S.for_each(0, [&](int slot, int, auto&& x) {
        const float p = Machine::exp2(fused_multiply_add(x, scales_[slot], -base[slot]));
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
  /// Where a row has seen nothing its base of -infinity is passed by every score but one of -infinity.
  TILEWISE_INLINE bool passed(float score, int slot) const {
    return fused_multiply_add(score, scales_[slot], -bases_[slot]) > kSlack;
  }

  template <class Out>
  TILEWISE_INLINE void move_references(RowValues<kSlots>& highest, Out& O, float scale) {
    reduce_rows<Machine, typename Scores::FragmentLayout>(highest, [](float a, float b) { return maximum(a, b); });
    typename Out::PerRow factor;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      // Rows that are near keep theirs, so that a row's bits don't depend on the rows beside it.
      factor[slot] = 1.0f;
      if (passed(highest[slot], slot)) {
        const RowReference before{scales_[slot], bases_[slot]}, moved = RowReference::at(highest[slot], scale, 0.0f);
        factor[slot] = before.template factor_to<Machine>(moved);
        scales_[slot] = moved.scale;
        bases_[slot] = moved.base;
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
  RowValues<kSlots> scales_, bases_;  // a base is -infinity until a score was seen
};

}  // namespace tilewise::device
