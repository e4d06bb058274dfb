// Where a row's weights are counted from, and how far they may range before that moves.
#pragma once

#include "device/common/tensors.h"
#include "device/tile/row_reference.h"

namespace tilewise::device {

/// In units of log2. A row's greatest weight starts as 2^kStart; scores may exceed the one that weighs so by kReach
/// before the reference moves. bf16: with weights of 2^-60 to 2^40 a product with a value is a normal number for values
/// of 2^-58 to 2^70. f16: weights from 2^8 to 2^15 < 65504, so that those that vanish are 2^-32 of the greatest. e4m3:
/// from 2^6 to 2^8 < 448; those below 2^-12 of the greatest keep fewer bits, and below 2^-16 they vanish.
template <int kElement>
struct WeightRange {
  static constexpr float kStart = kElement == kE4m3 ? 6.0f : kElement == kF16 ? 8.0f : -60.0f;
  static constexpr float kReach = kElement == kE4m3 ? 2.0f : kElement == kF16 ? 7.0f : 100.0f;
  /// Where sums are watched, not scores: a lane's part of a row's sum that is too great. 2^127 is 2^86 away, so that a
  /// jump of 59 nats from one tile to the next is not lost.
  static constexpr float kMostSum = 0x1p41f;
  /// In e4m3, where weights are watched, one that rounds to 2^8 or more is great: a row that has few others errs by
  /// what its greatest is rounded by, unless that is a power of 2. Once a lane's part of the row's sum is beyond
  /// kManyWeights none tells so much, and one that rounds to 448 is, as all do that are greater.
  static constexpr float kGreatWeight = 248.0f, kGreatestWeight = 432.0f, kManyWeights = 224.0f;
  /// From here on a weight may be any score's; beside it what the row has seen before counts for nothing.
  static constexpr float kLostWeight = 0x1p100f;
  /// Where scores are bounded, the greatest weight that one may have. The least is 2^-104 with softcap 50.
  static constexpr float kMostBounded = 40.0f;
};

/// A score's weight is exp2(score * scale - base). A score above the limit moves it; kUnseen and -infinity while the
/// row has seen nothing. From the scores of a row that is far (see RowReference) its greatest is subtracted before they
/// are scaled, and its base is 0. That score stands in the limit without its sign, which is the base's, and below 0, by
/// which a softmax takes the slow way without a look of its own.
template <class Machine, int kElement, bool kWatchesWeights>
struct SteadyReference {
  using Range = WeightRange<kElement>;
  /// Not of fp8, whose scores come from numbers up to 448: behind a branch that may change them its products would wait
  /// for each other.
  static constexpr bool kGoesFar = kElement != kE4m3;
  /// Where weights are watched, the first score that a row sees is to have a weight that is lost.
  static constexpr float kUnseen = kWatchesWeights ? -0x1p100f : 0.0f;

  float base, limit;

  /// With the row's greatest score as reference.
  TILEWISE_INLINE static SteadyReference at(float row_max, float scale) {
    if (row_max == -kInfinity) return {kUnseen, -kInfinity};
    if (RowReference::is_far_score(row_max, scale)) return far(row_max);
    return near(row_max, scale);
  }
  /// The same of a score that is near.
  TILEWISE_INLINE static SteadyReference near(float row_max, float scale) {
    float base = fused_multiply_add(row_max, scale, -Range::kStart);
    if constexpr (kElement != kF16) return {base, row_max + Range::kReach * Machine::reciprocal(scale)};
    // A large base is rounded by some powers of 2: the weight must not begin beyond its reach, and the limit, which is
    // rounded likewise, must not lie beyond it.
    constexpr float kMost = Range::kStart + Range::kReach;
    if (fused_multiply_add(row_max, scale, -base) > kMost) {
      base += __builtin_bit_cast(float, (__builtin_bit_cast(int32_t, base) & 0x7F800000) - (23 << 23));
    }
    const float room = kMost - fused_multiply_add(row_max, scale, -base);
    const float limit = row_max + room * Machine::reciprocal(scale);
    return {base, (limit - row_max) * scale > room + 0.5f ? row_max : limit};
  }
  /// What weights so far are multiplied by: a row that is far, or was, has left all that came before far behind.
  TILEWISE_INLINE static float factor_between(const SteadyReference& before, const SteadyReference& moved,
                                              float scale) {
    const bool alike = before.limit != -kInfinity && !before.is_far(scale) && !moved.is_far(scale);
    return alike ? Machine::exp2(before.base - moved.base) : 0.0f;
  }

  /// By the sign too: the limit of a row that is near may pass kFar.
  TILEWISE_INLINE bool is_far(float scale) const {
    return kGoesFar && limit * scale <= -RowReference::kFar && limit > -kInfinity;
  }
  TILEWISE_INLINE float far_score() const {
    return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, -limit) | __builtin_bit_cast(uint32_t, base));
  }
  TILEWISE_INLINE bool equals(const SteadyReference& other) const {
    return (limit == other.limit) & (__builtin_bit_cast(uint32_t, base) == __builtin_bit_cast(uint32_t, other.base));
  }

 private:
  static constexpr uint32_t kSign = 0x80000000u;
  TILEWISE_INLINE static SteadyReference far(float row_max) {
    return {__builtin_bit_cast(float, __builtin_bit_cast(uint32_t, row_max) & kSign), -magnitude(row_max)};
  }
};

}  // namespace tilewise::device
