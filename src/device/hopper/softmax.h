// The online softmax with a reference that seldom moves: most tiles neither reduce a maximum nor rescale O. Weights
// then range over many powers of two, which bf16 and fp32 hold as precisely as numbers near 1, f16 within its smaller
// range.
#pragma once

#include "device/common/float8.h"
#include "device/hopper/row_maxima.h"
#include "device/hopper/steady_reference.h"
#include "device/tile/fragment.h"

namespace tilewise::device {

/// `scale` takes scores to units of log2 and is positive.
template <class Scores, int kElement, bool kWatchesWeights = false, bool kSubtracts = false>
class SteadySoftmax {
  using Machine = typename Scores::Ops::Machine;
  using FragmentLayout = typename Scores::FragmentLayout;
  using Range = WeightRange<kElement>;
  static constexpr int kSlots = Scores::kSlots, kRegisters = FragmentLayout::kRegisters;
  /// Powers of 2 by which any near base can be raised: 2^-kMostSteps is a normal number.
  static constexpr int32_t kMostSteps = 112;

 public:
  using PerRow = RowValues<kSlots>;
  static constexpr int kElements = Scores::kRowTiles * Scores::kColTiles * kRegisters;

  /// Scores that lack nothing.
  struct NoRest {};

  /// What a lane's weights of a tile are summed in: two chains a row, since an addition waits for the one before.
  /// kCarries: whether the first goes on from the row's sum so far, and does not join it later.
  template <bool kCarries>
  struct TileSums {
    static_assert(kRegisters == 2 * kSlots);  // of the first 8 columns each element begins a chain
    PerRow chains[2];
  };

  PerRow row_sum;  // this lane's part of the weights' sum

  using Reference = SteadyReference<Machine, kElement, kWatchesWeights>;
  TILEWISE_INLINE Reference reference(int slot) const { return {bases_[slot], limits_[slot]}; }
  /// Takes over another warp's reference, no lower than its own. What weights and sums that exist are to be multiplied
  /// by.
  TILEWISE_INLINE float refer_to(int slot, const Reference& reference, float scale) {
    if (reference.equals(this->reference(slot))) return 1.0f;
    const Reference before = take(slot, reference);
    const float factor = Reference::factor_between(before, reference, scale);
    row_sum[slot] *= factor;
    return factor;
  }
  /// Rows that have seen nothing yet.
  TILEWISE_INLINE void clear() {
    bases_.fill(Reference::kUnseen), row_sum.fill(0.0f), limits_.fill(-kInfinity);
    far_ = false;
  }
  /// has_far(), once references have moved.
  TILEWISE_INLINE bool find_far(float scale) { return far_ = has_far(scale); }
  /// Whether a row of the warp is far: scores are to be compared from then on.
  TILEWISE_INLINE bool has_far(float scale) const {
    bool far = false;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) far |= reference(slot).is_far(scale);
    return Machine::any(far);
  }
  /// Subtracts what the scores of rows that are far are counted from, as move() does too, before weigh(). any:
  /// has_far().
  template <class Rest>
  TILEWISE_INLINE void subtract_far(Scores& S, float scale, Rest& rest, bool any) const {
    if (!any) return;
    PerRow lacks, less;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      const bool far = reference(slot).is_far(scale);
      less[slot] = far ? reference(slot).far_score() : 0.0f;
      lacks[slot] = take_rest(rest, slot, far);
    }
    S.for_each(0, [&](int slot, int, auto&& x) {
      if constexpr (IsSame<Rest, NoRest>::value) {
        x -= less[slot];
      } else {
        x = (x + lacks[slot]) - less[slot];
      }
    });
  }
  /// Whether a row's log-sum-exp is small_lse(), and its sum one that reciprocal() is right for. Rows that are far or
  /// have seen nothing have a base of 0.
  TILEWISE_INLINE bool has_small_lse(int slot) const {
    const float sum = row_sum[slot];
    return (bases_[slot] != 0.0f) & RowLse::is_small_base(bases_[slot]) & (sum > 0x1p-126f) & (sum < 0x1p126f);
  }
  TILEWISE_INLINE RowLse small_lse(int slot) const { return RowLse::small<Machine>(bases_[slot], row_sum[slot]); }
  TILEWISE_INLINE RowLse lse(int slot, float sum, float natural) const {
    const Reference reference = this->reference(slot);
    const bool far = reference.is_far(natural * kLog2E);
    return RowLse::of<Machine>(far, far ? reference.far_score() : reference.base, sum, natural);
  }

  /// Takes the first tile's maximum as reference. False if a row of the warp may be far, or has seen nothing, which one
  /// branch asks for all of them.
  TILEWISE_INLINE bool start(const Scores& S, float scale) {
    PerRow row_max = row_maxima<float>(S);
    reduce_rows<Machine, FragmentLayout>(row_max, [](float a, float b) { return higher(a, b); });
    bool near = true;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      row_sum[slot] = 0.0f;
      take(slot, Reference::near(row_max[slot], scale));
      near = near && RowReference::is_near_score(row_max[slot], scale);
    }
    far_ = false;
    if (!Machine::any(!near)) return true;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) take(slot, Reference::at(row_max[slot], scale));
    return false;
  }

  /// Where no score passes 1, and none is below -1.
  TILEWISE_INLINE void start_bounded(float scale) {
    far_ = false;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      row_sum[slot] = 0.0f;
      take(slot, {scale - Range::kMostBounded, kInfinity});
    }
  }

  /// Moves the references of rows that a score of this tile passes by far, and says of which slots some did, a bit
  /// each: O is then to be multiplied by `factor`. Rows that are near keep theirs, so that a row's bits don't depend on
  /// the rows beside it. `rest`: what this lane's scores of each row still lack.
  template <class Rest>
  TILEWISE_INLINE uint32_t move(Scores& S, float scale, PerRow& factor, Rest& rest) {
    PerRow threshold, most, row_max = row_maxima<int32_t>(S);
    bool comparable = true;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      threshold[slot] = completed(limits_[slot], rest, slot, -1.0f);
      comparable = comparable && threshold[slot] >= 0.0f;
    }
    comparable = comparable && !hides_far(rest);
    if (!Machine::any(!comparable || passes(row_max, threshold))) return 0;
    bool all_can_step = kSteps;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      most[slot] = threshold[slot] + step(scale);
      all_can_step = all_can_step && can_step(slot, scale);
    }
    if (Machine::any(!all_can_step || !comparable || passes(row_max, most))) {
      const uint32_t moved = move_far(S, row_max, threshold, most, comparable, scale, factor, rest);
      if constexpr (!kSubtracts) subtract_far(S, scale, rest, find_far(scale));
      return moved;
    }
    // No row is far, or becomes it by a step.
    uint32_t moved = 0;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      const uint32_t lanes = Machine::lanes_where(row_max[slot] > threshold[slot]);
      if (lanes != 0) moved |= 1u << slot;
      factor[slot] = step_row(slot, scale, has_lane_of_row(lanes));
      row_sum[slot] *= factor[slot];
    }
    return moved;
  }

  /// Elements [kFrom, kTo) of a lane become weights, and join `sums`, whose chains the first ones begin: zeros would
  /// take an addition each. `rest` as in move().
  template <int kFrom, int kTo, bool kCarries, class Rest = NoRest>
  TILEWISE_INLINE void weigh(Scores& S, float scale, TileSums<kCarries>& sums, const Rest& rest = {}) const {
    PerRow from;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) from[slot] = completed(bases_[slot], rest, slot, -scale);
    [[maybe_unused]] PerRow less;
    if constexpr (kSubtracts) {
      TILEWISE_UNROLL
      for (int slot = 0; slot < kSlots; ++slot) {
        less[slot] = reference(slot).is_far(scale) ? reference(slot).far_score() : 0.0f;
      }
    }
    TILEWISE_UNROLL
    for (int e = kFrom; e < kTo; ++e) {
      const int slot = FragmentLayout::slot(e % kRegisters), chain = e % 2;
      float& x = S.tile[0][e / kRegisters][e % kRegisters];
      if constexpr (kSubtracts) x -= less[slot];
      x = Machine::exp2(fused_multiply_add(x, scale, -from[slot]));
      float& sum = sums.chains[chain][slot];
      if (e >= kRegisters) {
        sum += x;
      } else {
        sum = kCarries && chain == 0 ? row_sum[slot] + x : x;
      }
    }
  }
  /// Once all of a tile's elements have been weighed.
  template <bool kCarries>
  TILEWISE_INLINE void add(const TileSums<kCarries>& sums) {
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      const float sum = sums.chains[0][slot] + sums.chains[1][slot];
      row_sum[slot] = kCarries ? sum : row_sum[slot] + sum;
    }
  }

  /// Whether a sum has grown too great in any of the warp's lanes. One that is no number comes from a score that is
  /// none.
  TILEWISE_INLINE bool has_grown() const {
    bool grown = false;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) grown |= row_sum[slot] > Range::kMostSum;
    return Machine::any(grown);
  }
  /// Whether a row of the warp has seen nothing yet.
  TILEWISE_INLINE bool has_unseen() const {
    bool unseen = false;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) unseen |= limits_[slot] == -kInfinity;
    return Machine::any(unseen);
  }
  /// Rows that are no query's get weights of 0 and move nothing.
  TILEWISE_INLINE void ignore(int slot) { take(slot, {kInfinity, kInfinity}); }

  /// Lowers the weights of rows whose sum has grown, by powers of 2, as far as the base can say: to be done to O and to
  /// weights in use too. None of them is far, whose scores are compared.
  TILEWISE_INLINE void lower(float scale, PerRow& factor) {
    PerRow most = row_sum;
    reduce_rows<Machine, FragmentLayout>(most, [](float a, float b) { return higher(a, b); });
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      const int32_t exponent = (__builtin_bit_cast(int32_t, most[slot]) >> 23) - 127;
      const bool grown = most[slot] > Range::kMostSum && most[slot] < kInfinity;
      const int32_t wanted = grown ? minimum(exponent - static_cast<int32_t>(Range::kStart), kMostSteps) : 0;
      const float lowered = bases_[slot] + static_cast<float>(wanted);
      const int32_t steps = grown ? static_cast<int32_t>(lowered - bases_[slot] + 0.5f) : 0;
      factor[slot] = __builtin_bit_cast(float, (127 - steps) << 23);
      bases_[slot] = grown ? lowered : bases_[slot];
      limits_[slot] += static_cast<float>(steps) / scale;
      row_sum[slot] *= factor[slot];
    }
  }

  /// 1 for rows whose sum was a number and is one no more, or whose weights may be none once they are rounded.
  TILEWISE_INLINE PerRow lost_rows(const PerRow& sum_before) const {
    PerRow lost;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      lost[slot] = sum_before[slot] < kInfinity && !(row_sum[slot] < 0x1p126f) ? 1.0f : 0.0f;
    }
    reduce_rows<Machine, FragmentLayout>(lost, [](float a, float b) { return higher(a, b); });
    return lost;
  }

  /// Where weights are watched, before those of a tile join their sum.
  TILEWISE_INLINE void look_at_sums() {
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) many_[slot] = row_sum[slot] > Range::kManyWeights;
  }
  /// What brings a great weight's byte, and that of one that is no number, to bit 7, which no weight has.
  TILEWISE_INLINE uint32_t great_byte(int slot) const {
    constexpr uint32_t kBit7 = 0x80, kGreat = float_to_e4m3(Range::kGreatWeight),
                       kGreatest = float_to_e4m3(Range::kGreatestWeight);
    return kBit7 - (many_[slot] ? kGreatest : kGreat);
  }
  /// Of a tile's weights in S: rows of which a lane has a great one take their greatest as reference, as if its score
  /// had been compared, and of their slots a bit is set: O and S are then to be multiplied by `factor`. lost: 1 for
  /// rows whose greatest weight may be that of any score, which stay as they are.
  TILEWISE_INLINE uint32_t refer_to_weights(const Scores& S, float scale, PerRow& factor, PerRow& lost) {
    PerRow most = row_maxima<int32_t>(S);
    bool great[kSlots];
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      const float least = many_[slot] ? Range::kGreatestWeight : Range::kGreatWeight;
      great[slot] = has_lane_of_row(Machine::lanes_where(most[slot] >= least));
    }
    reduce_rows<Machine, FragmentLayout>(most, [](float a, float b) { return higher(a, b); });
    uint32_t moved = 0;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      const bool is_lost = most[slot] >= Range::kLostWeight, moves = great[slot] && most[slot] < Range::kLostWeight;
      const float before = bases_[slot], reference = before + (Machine::log2(most[slot]) - Range::kStart);
      lost[slot] = is_lost ? 1.0f : 0.0f;
      factor[slot] = moves ? Machine::exp2(before - reference) : 1.0f;
      bases_[slot] = moves ? reference : before;
      limits_[slot] += moves ? (reference - before) * Machine::reciprocal(scale) : 0.0f;
      row_sum[slot] *= factor[slot];
      if (Machine::any(moves)) moved |= 1u << slot;
    }
    return moved;
  }

  /// Lost rows take their greatest score as reference, beside which what they have seen counts for nothing.
  TILEWISE_INLINE void refer_to_lost(const Scores& S, float scale, const PerRow& lost, PerRow& factor) {
    PerRow row_max = row_maxima<float>(S);
    reduce_rows<Machine, FragmentLayout>(row_max, [](float a, float b) { return higher(a, b); });
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      const bool is_lost = lost[slot] != 0.0f;
      factor[slot] = is_lost ? 0.0f : 1.0f;
      // A sum that is no number stays so.
      row_sum[slot] = is_lost && row_sum[slot] == row_sum[slot] ? 0.0f : row_sum[slot];
      if (is_lost) take(slot, Reference::at(row_max[slot], scale));
    }
  }
  /// Scores become weights, and those of lost rows join their sum.
  TILEWISE_INLINE void weigh_lost(Sm80Accumulator (&tiles)[2], float scale, const PerRow& lost) {
    TILEWISE_UNROLL
    for (int i = 0; i < 2 * kRegisters; ++i) {
      const int slot = FragmentLayout::slot(i % kRegisters);
      float& x = tiles[i / kRegisters][i % kRegisters];
      x = Machine::exp2(fused_multiply_add(x, scale, -bases_[slot]));
      row_sum[slot] += lost[slot] != 0.0f ? x : 0.0f;
    }
  }

  /// Rows of O whose slot is among `moved`, by move()'s factors.
  template <class Out>
  TILEWISE_INLINE static void scale_moved(Out& O, uint32_t moved, const PerRow& factor) {
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      if ((moved >> slot & 1) == 0) continue;
      O.for_each(0, [&](int of, int, auto&& x) { x = of == slot ? x * factor[slot] : x; });
    }
  }

  TILEWISE_INLINE void reduce_sum() {
    reduce_rows<Machine, FragmentLayout>(row_sum, [](float a, float b) { return a + b; });
  }

 private:
  TILEWISE_INLINE static float completed(float x, const NoRest&, int, float) { return x; }
  TILEWISE_INLINE static float completed(float x, const PerRow& rest, int slot, float scale) {
    return x + rest[slot] * scale;
  }
  /// Whether a row may be far without its threshold saying so: that is the limit, below 0, where scores lack nothing.
  TILEWISE_INLINE static bool hides_far(const NoRest&) { return false; }
  TILEWISE_INLINE bool hides_far(const PerRow&) const { return far_; }
  /// What scores of a row that is far lack, and do no more.
  TILEWISE_INLINE static float take_rest(const NoRest&, int, bool) { return 0.0f; }
  TILEWISE_INLINE static float take_rest(PerRow& rest, int slot, bool far) {
    const float taken = far ? rest[slot] : 0.0f;
    rest[slot] = far ? 0.0f : rest[slot];
    return taken;
  }

  /// Most rows that move do so by the same step, as far as a score may pass a reference: a power of 2, of which neither
  /// the row's maximum nor an exponential has to be waited for. Not e4m3, which holds a row's greatest weight only
  /// where that is a power of 2.
  static constexpr bool kSteps = kElement != kE4m3;
  TILEWISE_INLINE static float step(float scale) { return Range::kReach * Machine::reciprocal(scale); }
  /// Whether the base can say it: large ones have no room for it in their last places.
  TILEWISE_INLINE bool can_step(int slot, float scale) const { return magnitude(limits_[slot] * scale) < 0x1p12f; }
  /// What the row's weights so far are multiplied by.
  TILEWISE_INLINE float step_row(int slot, float scale, bool passed) {
    bases_[slot] = passed ? bases_[slot] + Range::kReach : bases_[slot];  // a sum would lose a far row's sign
    limits_[slot] += passed ? step(scale) : 0.0f;
    constexpr int32_t kBias = 127, kMantissaBits = 23;
    constexpr int32_t kFactor = (kBias - static_cast<int32_t>(Range::kReach)) << kMantissaBits;
    return passed ? __builtin_bit_cast(float, kFactor) : 1.0f;
  }
  /// move() where for some row a step may not be enough, or its scores cannot be compared as integers.
  template <class Rest>
  TILEWISE_INLINE uint32_t move_far(const Scores& S, PerRow& row_max, PerRow& threshold, PerRow& most, bool comparable,
                                    float scale, PerRow& factor, const Rest& rest) {
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      if (!can_step(slot, scale)) most[slot] = threshold[slot];
      if (!reference(slot).is_far(scale)) continue;
      threshold[slot] = most[slot] = completed(reference(slot).far_score(), rest, slot, -1.0f);
    }
    if (Machine::any(!comparable)) {
      row_max = row_maxima<float>(S);
      if (!Machine::any(passes(row_max, threshold))) return 0;
    }
    return jump(row_max, threshold, most, scale, factor, rest);
  }
  /// Then a row's greatest score becomes its reference, where that is too far for a step or sees its first key.
  template <class Rest>
  TILEWISE_INLINE uint32_t jump(PerRow& row_max, const PerRow& threshold, const PerRow& most, float scale,
                                PerRow& factor, const Rest& rest) {
    bool jumps[kSlots];
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      if (kSteps) jumps[slot] = has_lane_of_row(Machine::lanes_where(row_max[slot] > most[slot]));
      row_max[slot] = row_max[slot] > threshold[slot] ? completed(row_max[slot], rest, slot, 1.0f) : -kInfinity;
    }
    reduce_rows<Machine, FragmentLayout>(row_max, [](float a, float b) { return higher(a, b); });
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      const Reference before = reference(slot);
      const bool passed = row_max[slot] > -kInfinity, jumped = kSteps ? jumps[slot] : passed;
      factor[slot] = kSteps ? step_row(slot, scale, passed && !jumped) : 1.0f;
      if (jumped) {
        take(slot, Reference::at(row_max[slot], scale));
        factor[slot] = Reference::factor_between(before, reference(slot), scale);
      }
      row_sum[slot] *= factor[slot];
    }
    return (1u << kSlots) - 1;
  }
  /// Whether one of them has scores of this lane's rows.
  TILEWISE_INLINE static bool has_lane_of_row(uint32_t lanes) { return (lanes >> (Machine::lane() & 28) & 15u) != 0; }

  TILEWISE_INLINE Reference take(int slot, const Reference& reference) {
    const Reference before = this->reference(slot);
    bases_[slot] = reference.base;
    limits_[slot] = reference.limit;
    return before;
  }
  TILEWISE_INLINE static bool passes(const PerRow& row_max, const PerRow& threshold) {
    bool passed = false;
    TILEWISE_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) passed |= row_max[slot] > threshold[slot];
    return passed;
  }

  bool many_[kSlots];      // where weights are watched: whether the lane's part of the row's sum was that of many
  PerRow bases_, limits_;  // see Reference
  bool far_;               // whether a row of the warp is, since the reference moved last; not where kSubtracts
};

}  // namespace tilewise::device
