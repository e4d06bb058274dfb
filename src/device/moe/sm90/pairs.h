// Which expert takes which pairs (token, slot): looked up by a warp whose lanes hold all ids of a small call, or read
// from lists that the sorting kernels have left.
#pragma once

#include "device/moe/ids.h"
#include "device/moe/sm90/params.h"
#include "device/sm90/contract.h"

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

/// Lane l holds the ids of pairs l, l + 32, ... Every call is made by all lanes of a warp, here and below.
template <class Machine, int kHeld>
class HeldPairs {
 public:
  template <class Params>
  TILEWISE_INLINE explicit HeldPairs(const Params& p) {
    TILEWISE_UNROLL
    for (int r = 0; r < kHeld; ++r) {
      const int32_t pair = 32 * r + Machine::lane(), token = pair / p.shape.top_k;
      expert_[r] = pair < p.shape.pairs()
                       ? load_expert<Machine>(p.shape, p.topk_ids, token, pair - token * p.shape.top_k)
                       : kNobody;
    }
    const int32_t words = ceil_div(p.shape.num_experts, 32);
    for (int32_t word = 0; word < words; ++word) {
      uint32_t own = 0;
      TILEWISE_UNROLL
      for (int r = 0; r < kHeld; ++r) {
        if (expert_[r] >> 5 == word) own |= 1u << (expert_[r] & 31);
      }
      const uint32_t all = bits_of_wave<Machine>(own);
      if (Machine::lane() == word) active_ = all;
    }
    before_ = popcount(active_);
    groups_ = sum_of_wave<Machine>(before_);
    before_ = sum_of_lanes_before<Machine>(before_);
  }

  TILEWISE_INLINE int32_t num_groups() const { return groups_; }

  /// The group of that number: the so-manyth expert that has rows, and all that it has.
  TILEWISE_INLINE ExpertGroup group(int32_t number) {
    const int32_t rest = number - before_;
    const bool here = rest >= 0 && rest < popcount(active_);
    const int32_t own = here ? 32 * Machine::lane() + nth_bit(active_, rest) : 0;
    const auto expert = static_cast<int32_t>(bits_of_wave<Machine>(static_cast<uint32_t>(own)));
    int32_t count = 0;
    TILEWISE_UNROLL
    for (int r = 0; r < kHeld; ++r) {
      lanes_[r] = Machine::lanes_where(expert_[r] == expert);
      count += popcount(lanes_[r]);
    }
    return {expert, 0, count};
  }
  /// Row i of the group that was asked for last, or kNobody.
  TILEWISE_INLINE int32_t pair(const ExpertGroup& group, int32_t i) const {
    if (i >= group.count) return kNobody;
    i += group.first;
    uint32_t lanes = 0;
    int32_t first = 0, rest = 0;
    TILEWISE_UNROLL
    for (int r = 0; r < kHeld; ++r) {
      const int32_t here = popcount(lanes_[r]);
      if (i >= 0 && i < here) lanes = lanes_[r], first = 32 * r, rest = i;
      i -= here;
    }
    return lanes == 0 ? kNobody : first + nth_bit(lanes, rest);
  }

 private:
  int32_t expert_[kHeld];
  uint32_t lanes_[kHeld];
  uint32_t active_ = 0;  // experts 32 l to 32 l + 31 that have rows
  int32_t before_, groups_;
};

/// What the sorting kernel has left. Lane l holds how many pairs experts l * kHeld to l * kHeld + kHeld - 1 have, which
/// are cut into groups of kRows at most, as even as multiples of kStep allow.
template <class Machine, int kHeld, int kRows, int kStep>
class ReadPairs {
 public:
  template <class Params>
  TILEWISE_INLINE explicit ReadPairs(const Params& p) : pairs_(p.sorted.pairs) {
    const int32_t first = Machine::lane() * kHeld;
    TILEWISE_UNROLL
    for (int e = 0; e <= kHeld; ++e) {
      offset_[e] = Machine::load_global(p.sorted.offsets + minimum(first + e, p.shape.num_experts));
    }
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
    int32_t rest = number - before_ * tiles, group = before_;
    const bool here = rest >= 0 && rest < own_ * tiles;
    GroupTile own{};
    TILEWISE_UNROLL
    for (int e = 0; e < kHeld; ++e) {
      const int32_t count = offset_[e + 1] - offset_[e], groups = ceil_div(count, kRows);
      if (here && rest >= 0 && rest < groups * tiles) {
        const int32_t index = rest / groups, part = rest - index * groups;
        const int32_t rows = ceil_div(ceil_div(count, groups), kStep) * kStep, first = offset_[e] + part * rows;
        own = {{Machine::lane() * kHeld + e, first, minimum(offset_[e + 1] - first, rows)}, group + part, index};
      }
      rest -= groups * tiles, group += groups;
    }
    const int32_t lane = nth_bit(Machine::lanes_where(here), 0);
    const auto told = [&](int32_t x) TILEWISE_INLINE_LAMBDA { return Machine::shuffle(x, lane); };
    return {{told(own.group.expert), told(own.group.first), told(own.group.count)}, told(own.number), told(own.index)};
  }
  TILEWISE_INLINE int32_t pair(const ExpertGroup& group, int32_t i) const {
    return i < group.count ? Machine::load_global(pairs_ + group.first + i) : kNobody;
  }

 private:
  const int32_t* const pairs_;
  int32_t offset_[kHeld + 1];
  int32_t own_ = 0, before_, groups_;  // groups of this lane's experts, of those before, of all
};

/// What lanes hold of columns l, l + 32, ..., of any column: registers are chosen by constants.
template <class Machine, int kCount>
TILEWISE_INLINE int32_t pair_of_column(const int32_t (&pair)[kCount], int32_t column) {
  int32_t own = pair[0];
  TILEWISE_UNROLL
  for (int i = 1; i < kCount; ++i) own = column / 32 == i ? pair[i] : own;
  return Machine::shuffle(own, column % 32);
}

}  // namespace tilewise::device
