// The online softmax of a block's rows, in units of log2. A row's row_max is a score that it had, not always its
// highest: it moves when a score passes it by kSlack. So P stays below 2^8, exact in fp32 sums and far inside f16's
// range.
#pragma once

#include "device/tile/fragment.h"

namespace tilewise::device {

/// What follows from a row_max: the product that would move it, and what exponents subtract.
/// Kept where a lane has few rows and counts instructions, worked out where it counts registers.
template <int kSlots, bool kKept>
struct RowBounds {
  static constexpr float kSlack = 8.0f;
  TILEWISE_INLINE void clear() {}
  TILEWISE_INLINE void move(float, int, float) {}
  TILEWISE_INLINE bool passed(float product, float row_max, int, float scale) const {
    return product * scale > row_max + kSlack;
  }
  TILEWISE_INLINE float base(float row_max, int) const { return row_max == -kInfinity ? 0.0f : row_max; }
};

template <int kSlots>
struct RowBounds<kSlots, true> {
  RowValues<kSlots> limits, bases;
  TILEWISE_INLINE void clear() {
    limits.fill(-kInfinity);
    bases.fill(0.0f);
  }
  TILEWISE_INLINE void move(float row_max, int slot, float scale) {
    limits[slot] = (row_max + RowBounds<kSlots, false>::kSlack) / scale;
    bases[slot] = RowBounds<kSlots, false>().base(row_max, slot);
  }
  TILEWISE_INLINE bool passed(float product, float, int slot, float) const { return product > limits[slot]; }
  TILEWISE_INLINE float base(float, int slot) const { return bases[slot]; }
};

template <class Scores>
class OnlineSoftmax {
  using Machine = typename Scores::Ops::Machine;
  static constexpr int kSlots = Scores::kSlots;
  static constexpr bool kPacked = Scores::kPacked;

 public:
  RowValues<kSlots> row_max;  // -infinity until a score was seen
  RowValues<kSlots> row_sum;  // this lane's part

  TILEWISE_INLINE void clear() {
    row_max.fill(-kInfinity);
    row_sum.fill(0.0f);
    if constexpr (kPacked) sums_.clear();
    bounds_.clear();
  }

  /// P = exp2(S * scale - row_max), in the place of S. Rescales O where a row_max moves.
  template <class Out>
  TILEWISE_INLINE void update(Scores& S, Out& O, float scale) {
    RowValues<kSlots> highest;
    highest.fill(-kInfinity);
    S.for_each(0, [&](int slot, int, auto&& x) { highest[slot] = higher(highest[slot], x); });
    bool far = false;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) far |= bounds_.passed(highest[slot], row_max[slot], slot, scale);
    if (Machine::any(far)) move_row_max(highest, O, scale);
    RowValues<kSlots> base;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) base[slot] = bounds_.base(row_max[slot], slot);
    if constexpr (kPacked) {
      S.for_each_packed([&](int slot, auto& x) {
        const auto exponent = x * scale - base[slot];
        x[0] = Machine::exp2(exponent[0]);
        x[1] = Machine::exp2(exponent[1]);
        sums_.value[slot] += x;
      });
    } else {
      S.for_each(0, [&](int slot, int, auto&& x) {
        const float p = Machine::exp2(x * scale - base[slot]);
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
  template <class Out>
  TILEWISE_INLINE void move_row_max(RowValues<kSlots>& highest, Out& O, float scale) {
    reduce_rows<Machine, typename Scores::FragmentLayout>(highest, [](float a, float b) { return maximum(a, b); });
    typename Out::PerRow factor;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      // Rows that are near keep theirs, so that a row's bits don't depend on the rows beside it.
      const bool far = bounds_.passed(highest[slot], row_max[slot], slot, scale);
      const float moved = far ? highest[slot] * scale : row_max[slot];
      factor[slot] = row_max[slot] == -kInfinity ? 0.0f : Machine::exp2(row_max[slot] - moved);
      row_max[slot] = moved;
      bounds_.move(moved, slot, scale);
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
  RowBounds<kSlots, kPacked> bounds_;
};

}  // namespace tilewise::device
