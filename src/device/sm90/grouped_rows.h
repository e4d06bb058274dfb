// Rows that lie by expert, cut into groups that tiles of a product take, and which tile of which group comes when.
#pragma once

#include "device/sm90/warpgroup.h"

namespace tilewise::device {

/// Rows of one expert that a tile takes.
struct ExpertGroup {
  int32_t expert, first, count;
};

/// A tile of weights for a group.
struct GroupTile {
  ExpertGroup group;
  int32_t number, index;  // of the group; of the expert's tiles
};

/// Group `part` of the `groups` that an expert's `count` rows, which end before row `end`, are cut into, as even as
/// multiples of kStep allow.
template <int kStep>
TILEWISE_INLINE ExpertGroup cut_group(int32_t expert, int32_t end, int32_t count, int32_t groups, int32_t part) {
  const int32_t rows = ceil_div(ceil_div(count, groups), kStep) * kStep, first = end - count + part * rows;
  return {expert, first, minimum(end - first, rows)};
}

/// Of the one lane that knows it, for all.
template <class Machine>
TILEWISE_INLINE ExpertGroup told_group(const ExpertGroup& group, int32_t lane) {
  return {Machine::shuffle(group.expert, lane), Machine::shuffle(group.first, lane),
          Machine::shuffle(group.count, lane)};
}

/// Of lanes with lower numbers.
template <class Machine>
TILEWISE_INLINE int32_t sum_of_lanes_before(int32_t value) {
  int32_t before = 0;
  TILEWISE_UNROLL
  for (int bit = 1; bit < 32; bit *= 2) {
    const int32_t other = shuffle_xor<Machine>(value, bit);
    if (Machine::lane() & bit) before += other;
    value += other;
  }
  return before;
}

/// Lane l holds how many rows experts l * kHeld to l * kHeld + kHeld - 1 have, which are cut into groups of kRows at
/// most, as even as multiples of kStep allow. All lanes of a warp make every call, and no load waits for another.
template <class Machine, int kHeld, int kRows, int kStep>
class GroupedRows {
 public:
  static constexpr int32_t kMostExperts = 32 * kHeld;

  /// offsets: experts + 1 rows, not falling.
  TILEWISE_INLINE GroupedRows(const int32_t* offsets, int32_t experts) {
    const int32_t first = Machine::lane() * kHeld;
    TILEWISE_UNROLL
    for (int e = 0; e <= kHeld; ++e) offset_[e] = Machine::load_global(offsets + minimum(first + e, experts));
    TILEWISE_UNROLL
    for (int e = 0; e < kHeld; ++e) own_ += ceil_div(offset_[e + 1] - offset_[e], kRows);
    groups_ = sum_of_wave<Machine>(own_);
    before_ = sum_of_lanes_before<Machine>(own_);
  }

  TILEWISE_INLINE int32_t num_groups() const { return groups_; }
  TILEWISE_INLINE ExpertGroup group(int32_t number) const { return place(number, 1).group; }
  /// Where each group has so many tiles: tile `number` of all, by experts, each tile's for all of the expert's groups
  /// before the next one's, which so share weights in L2.
  TILEWISE_INLINE GroupTile place(int32_t number, int32_t tiles) const {
    int32_t rest = number - before_ * tiles, expert = 0, place = 0, end = 0, count = 0, group = before_;
    const bool here = rest >= 0 && rest < own_ * tiles;
    TILEWISE_UNROLL
    for (int e = 0; e < kHeld; ++e) {
      const int32_t of_expert = offset_[e + 1] - offset_[e], groups = ceil_div(of_expert, kRows);
      if (rest >= groups * tiles) group += groups;
      if (rest >= 0 && rest < groups * tiles) expert = e, place = rest, end = offset_[e + 1], count = of_expert;
      rest -= groups * tiles;
    }
    GroupTile own{};
    if (here) {
      const int32_t groups = ceil_div(count, kRows), index = place / groups, part = place - index * groups;
      own = {cut_group<kStep>(Machine::lane() * kHeld + expert, end, count, groups, part), group + part, index};
    }
    const int32_t lane = nth_bit(Machine::lanes_where(here), 0);
    return {told_group<Machine>(own.group, lane), Machine::shuffle(own.number, lane),
            Machine::shuffle(own.index, lane)};
  }

 private:
  int32_t offset_[kHeld + 1];
  int32_t own_ = 0, before_, groups_;  // groups of this lane's experts, of those before, of all
};

}  // namespace tilewise::device
