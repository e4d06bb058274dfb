// Which expert takes which pairs (token, slot): looked up by a warp whose lanes hold all ids of a small call, or read
// from lists that the sorting kernels have left.
#pragma once

#include "device/moe/ids.h"
#include "device/moe/sm90/params.h"
#include "device/sm90/contract.h"
#include "device/sm90/grouped_rows.h"

namespace tilewise::device {

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

/// What the sorting kernel has left.
template <class Machine, int kHeld, int kRows, int kStep>
class ReadPairs : public GroupedRows<Machine, kHeld, kRows, kStep> {
 public:
  template <class Params>
  TILEWISE_INLINE explicit ReadPairs(const Params& p)
      : GroupedRows<Machine, kHeld, kRows, kStep>(p.sorted.offsets, p.shape.num_experts), pairs_(p.sorted.pairs) {}

  TILEWISE_INLINE int32_t pair(const ExpertGroup& group, int32_t i) const {
    return i < group.count ? Machine::load_global(pairs_ + group.first + i) : kNobody;
  }

 private:
  const int32_t* const pairs_;
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
