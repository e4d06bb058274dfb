// The online softmax of a block's rows, in units of log2. The reference of a row moves only when a
// score passes it by kSlack: weights stay below 2^8, exact in fp32 sums and far inside f16's range.
#pragma once

#include "device/portable/fragment.h"

namespace tilewise::device {

/// What follows from a row's reference: the product that would move it, and what exponents subtract.
/// Kept where a lane has few rows and counts instructions, worked out where it counts registers.
template <int kSlots, bool kKept>
struct Bounds {
  static constexpr float kSlack = 8.0f;
  TILEWISE_INLINE void clear() {}
  TILEWISE_INLINE void move(float, int, float) {}
  TILEWISE_INLINE bool passed(float product, float reference, int, float scale) const {
    return product * scale > reference + kSlack;
  }
  TILEWISE_INLINE float base(float reference, int) const { return reference == -kInfinity ? 0.0f : reference; }
};

template <int kSlots>
struct Bounds<kSlots, true> {
  RowValues<kSlots> limits, bases;
  TILEWISE_INLINE void clear() {
    limits.fill(-kInfinity);
    bases.fill(0.0f);
  }
  TILEWISE_INLINE void move(float reference, int slot, float scale) {
    limits[slot] = (reference + Bounds<kSlots, false>::kSlack) / scale;
    bases[slot] = Bounds<kSlots, false>().base(reference, slot);
  }
  TILEWISE_INLINE bool passed(float product, float, int slot, float) const { return product > limits[slot]; }
  TILEWISE_INLINE float base(float, int slot) const { return bases[slot]; }
};

template <class Machine, class Scores>
class OnlineSoftmax {
  static constexpr int kSlots = Scores::kSlots;
  static constexpr bool kPacked = Scores::kPacked;

 public:
  RowValues<kSlots> reference;  // -infinity until a key was seen
  RowValues<kSlots> sum;        // this lane's part

  TILEWISE_INLINE void clear() {
    reference.fill(-kInfinity);
    sum.fill(0.0f);
    if constexpr (kPacked) sums_.clear();
    bounds_.clear();
  }

  /// Turns scores into weights: exp2(score * scale - reference). Rescales `out` where needed.
  template <class Out>
  TILEWISE_INLINE void update(Scores& scores, Out& out, float scale) {
    RowValues<kSlots> highest;
    highest.fill(-kInfinity);
    scores.for_each(0, [&](int slot, int, auto&& x) { highest[slot] = higher(highest[slot], x); });
    bool far = false;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) far |= bounds_.passed(highest[slot], reference[slot], slot, scale);
    if (Machine::any(far)) move_reference(highest, out, scale);
    RowValues<kSlots> base;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) base[slot] = bounds_.base(reference[slot], slot);
    if constexpr (kPacked) {
      scores.for_each_packed([&](int slot, auto& x) {
        const auto exponent = x * scale - base[slot];
        x[0] = Machine::exp2(exponent[0]);
        x[1] = Machine::exp2(exponent[1]);
        sums_.value[slot] += x;
      });
    } else {
      scores.for_each(0, [&](int slot, int, auto&& x) {
        const float weight = Machine::exp2(x * scale - base[slot]);
        sum[slot] += weight;
        x = weight;
      });
    }
  }

  TILEWISE_INLINE void reduce_sum() {
    if constexpr (kPacked) {
      TILEWISE_UNROLL
      for (int slot = 0; slot < kSlots; ++slot) sum[slot] = sums_.value[slot][0] + sums_.value[slot][1];
    }
    reduce_rows<Machine, typename Scores::Layout>(sum, [](float a, float b) { return a + b; });
  }

 private:
  template <class Out>
  TILEWISE_INLINE void move_reference(RowValues<kSlots>& highest, Out& out, float scale) {
    reduce_rows<Machine, typename Scores::Layout>(highest, [](float a, float b) { return maximum(a, b); });
    typename Out::PerRow factor;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      // Rows that are near keep theirs, so that a row's bits don't depend on the rows beside it.
      const bool far = bounds_.passed(highest[slot], reference[slot], slot, scale);
      const float moved = far ? highest[slot] * scale : reference[slot];
      factor[slot] = reference[slot] == -kInfinity ? 0.0f : Machine::exp2(reference[slot] - moved);
      reference[slot] = moved;
      bounds_.move(moved, slot, scale);
      if constexpr (kPacked) {
        sums_.value[slot] *= factor[slot];
      } else {
        sum[slot] *= factor[slot];
      }
    }
    out.scale_rows(factor);
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
  Bounds<kSlots, kPacked> bounds_;
};

}  // namespace tilewise::device
