// Rows that lie by expert, cut into groups that blocks take, where the two blocks of a cluster take two groups of an
// expert side by side and so load its weights once for both.
#pragma once

#include "device/sm90/grouped_rows.h"

namespace tilewise::device {

/// A block's tile: of weights for a group of its own, or for one that both blocks of its cluster have.
struct PairedTile {
  ExpertGroup group;
  int32_t index;  // of the expert's tiles, as wide as they are for a pair or for a lone group
  bool paired;
};

/// Lane l holds experts as GroupedRows has it. All lanes of a warp make every call. Where kPairs is false no groups are
/// paired.
template <class Machine, int kHeld, int kRows, int kStep, bool kPairs>
class PairedRows {
 public:
  /// offsets: experts + 1 rows, not falling. Weights are as many tiles for each pair of groups, and for each other one.
  TILEWISE_INLINE PairedRows(const int32_t* offsets, int32_t experts, int32_t pair_tiles, int32_t lone_tiles)
      : pair_tiles_(pair_tiles), lone_tiles_(lone_tiles) {
    const int32_t first = Machine::lane() * kHeld;
    TILEWISE_UNROLL
    for (int e = 0; e <= kHeld; ++e) offset_[e] = Machine::load_global(offsets + minimum(first + e, experts));
    TILEWISE_UNROLL
    for (int e = 0; e < kHeld; ++e) own_ += cut_of(e).tiles;
    all_ = sum_of_wave<Machine>(own_);
    before_ = sum_of_lanes_before<Machine>(own_);
  }

  /// Of a cluster.
  TILEWISE_INLINE int32_t num_tiles() const { return all_; }
  /// The part of a cluster's tile `number` that is the block's of that rank: by experts, each tile of weights for all
  /// of the expert's pairs before the next one.
  TILEWISE_INLINE PairedTile place(int32_t number, int32_t rank) const {
    int32_t rest = number - before_, expert = 0, place = 0, end = 0;
    const bool here = rest >= 0 && rest < own_;
    Cut cut{};
    TILEWISE_UNROLL
    for (int e = 0; e < kHeld; ++e) {
      const Cut next = cut_of(e);
      if (rest >= 0 && rest < next.tiles) expert = e, place = rest, end = offset_[e + 1], cut = next;
      rest -= next.tiles;
    }
    PairedTile own{};
    if (here) {
      const int32_t of_pairs = cut.pairs * pair_tiles_, groups = 2 * cut.pairs + cut.lones;
      own.paired = place < of_pairs;
      const int32_t apart = own.paired ? place : place - of_pairs, beside = own.paired ? cut.pairs : cut.lones;
      own.index = apart / beside;
      const int32_t turn = apart - own.index * beside, part = own.paired ? 2 * turn + rank : 2 * cut.pairs + turn;
      own.group = cut_group<kStep>(Machine::lane() * kHeld + expert, end, cut.count, groups, part);
    }
    const int32_t lane = nth_bit(Machine::lanes_where(here), 0);
    return {told_group<Machine>(own.group, lane), Machine::shuffle(own.index, lane),
            Machine::shuffle(own.paired ? 1 : 0, lane) != 0};
  }

 private:
  /// Of an expert.
  struct Cut {
    int32_t count, pairs, lones, tiles;  // rows; groups by twos and others; tiles of all
  };
  TILEWISE_INLINE Cut cut_of(int e) const {
    const int32_t count = offset_[e + 1] - offset_[e], groups = ceil_div(count, kRows);
    const int32_t pairs = kPairs ? groups / 2 : 0, lones = groups - 2 * pairs;
    return {count, pairs, lones, pairs * pair_tiles_ + lones * lone_tiles_};
  }

  const int32_t pair_tiles_, lone_tiles_;
  int32_t offset_[kHeld + 1];
  int32_t own_ = 0, before_, all_;  // tiles of this lane's experts, of those before, of all
};

}  // namespace tilewise::device
