// Parts of the keys where sequences differ in length by as much as the device alone knows: each sequence has as many
// as its keys are of all, so that the blocks of one long sequence among short ones end together.
#pragma once

#include "device/attention/config.h"
#include "device/attention/grid_place.h"
#include "device/kv_cache/sequence.h"
#include "device/tile/contract.h"

namespace tilewise::device {

/// Whether a kernel's parts are scheduled by lengths, and not as many for each sequence.
template <auto C>
constexpr bool schedules_keys() {
  if constexpr (requires { C.schedules_keys; }) {
    return C.schedules_keys != 0;
  } else {
    return false;
  }
}

/// Sequences as the lanes of a wave have them: a run of neighbours each.
template <class Machine>
class SequenceRuns {
 public:
  static constexpr int kMostOfLane = kMostScheduledSequences / 32;  // where a wave has 32 lanes, or more

  TILEWISE_INLINE explicit SequenceRuns(int64_t batches)
      : a_lane_(ceil_div(static_cast<int32_t>(batches), Machine::kLanes)), begin_(Machine::lane() * a_lane_) {}

  /// visit(i, sequence) for each of this lane's, some of which may lie behind the last one.
  template <class Visit>
  TILEWISE_INLINE void for_each_of_lane(const Visit& visit) const {
    TILEWISE_UNROLL
    for (int i = 0; i < kMostOfLane; ++i) {
      if (i < a_lane_) visit(i, begin_ + i);
    }
  }

  /// Of things of which the lane's sequence i has count_of(i), numbered one sequence after the other: what
  /// `look(sequence, first, count)` makes of the sequence that it looks for; -1 of others.
  template <class CountOf, class Look>
  TILEWISE_INLINE int32_t find(const CountOf& count_of, const Look& look) const {
    int32_t own = 0;
    for_each_of_lane([&](int i, int32_t) { own += count_of(i); });
    int32_t first = sum_of_lanes_before(own), found = -1;
    for_each_of_lane([&](int i, int32_t batch) {
      const int32_t count = count_of(i);
      found = maximum(found, look(batch, first, count));
      first += count;
    });
    return highest_of_wave<Machine>(found);
  }

  TILEWISE_INLINE static int32_t sum_of_lanes_before(int32_t own) {
    int32_t before = 0, all = own;
    TILEWISE_UNROLL
    for (int bit = 1; bit < Machine::kLanes; bit *= 2) {
      const int32_t others = shuffle_xor<Machine>(all, bit);
      before += (Machine::lane() & bit) != 0 ? others : 0;
      all += others;
    }
    return before;
  }
  /// Of sequences in each lane, and the lane's first.
  TILEWISE_INLINE int32_t a_lane() const { return a_lane_; }
  TILEWISE_INLINE int32_t begin() const { return begin_; }

 private:
  int32_t a_lane_, begin_;
};

/// Whether parts are few, since to leave a part's sums and to join them takes as long as several tiles of keys: what a
/// block can well have whole stays so, and sequences that are equally long have no more parts than begin at once.
template <auto C>
constexpr bool schedules_sparingly() {
  if constexpr (requires { C.kSchedulesSparingly; }) {
    return C.kSchedulesSparingly;
  } else {
    return false;
  }
}

/// Every wave computes the schedule itself, a run of sequences in each lane: it waits for lengths once, and for some
/// shuffles.
template <class Machine, auto C, class Params>
class KeyScheduler {
  static constexpr bool kSparing = schedules_sparingly<C>();

 public:
  TILEWISE_INLINE explicit KeyScheduler(const Params& p) : p_(p), runs_(p.shape.batch_size) {
    const auto batches = static_cast<int32_t>(p.shape.batch_size);
    int32_t all = 0, most = 0;
    runs_.for_each_of_lane([&](int i, int32_t batch) {
      tiles_[i] = batch < batches ? tiles_of(batch) : -1;
      all += maximum(tiles_[i], 0);
      most = maximum(most, tiles_[i]);
    });
    const auto all_tiles = static_cast<float>(sum_of_wave<Machine>(all));
    const auto most_tiles = static_cast<float>(highest_of_wave<Machine>(most));
    even_ = most_tiles * static_cast<float>(batches) <= kEven * all_tiles;
    float wanted = all_tiles * (even_ ? p.key_schedule.of_even_parts : p.key_schedule.of_parts);
    if constexpr (kSparing) {
      constexpr float kNearly = 1.001f;  // of a quotient that should be a whole number
      const float at_once = kNearly / (p.key_schedule.of_even_parts * static_cast<float>(batches));
      most_parts_ = even_ ? static_cast<int32_t>(at_once) : kMostSplits;
      whole_tiles_ = even_ ? 0.0f : all_tiles * p.key_schedule.of_even_parts;
      wanted = even_ ? 0.0f : wanted;
    }
    const float a_part = maximum(maximum(wanted, p.key_schedule.fewest_tiles), most_tiles * (1.0f / kMostSplits));
    parts_a_tile_ = 1.0f / a_part;
  }

  /// Part `place` of the parts of all sequences, and whose it is; count 0 where there are fewer.
  TILEWISE_INLINE KeyPart part_at(int32_t place, int32_t& batch) const {
    const int32_t found = find([place](int32_t b, int32_t first, int32_t count) {
      const int32_t number = place - first;
      return number >= 0 && number < count ? (b * kMostSplits + number) * kMostSplits + count - 1 : -1;
    });
    if (found < 0) return {0, 0, place};
    batch = found / (kMostSplits * kMostSplits);
    return {found / kMostSplits % kMostSplits, found % kMostSplits + 1, place};
  }

  /// A sequence's first part, but with the count of all.
  TILEWISE_INLINE KeyPart parts_of(int32_t batch) const {
    const int32_t found = find(
        [batch](int32_t b, int32_t first, int32_t count) { return b == batch ? first * kMostSplits + count - 1 : -1; });
    return {0, found % kMostSplits + 1, found / kMostSplits};
  }

 private:
  /// Of the mean length that the longest is, where sequences count as equally long.
  static constexpr float kEven = 1.25f;

  TILEWISE_INLINE int32_t tiles_of(int32_t batch) const {
    const auto keys = static_cast<int32_t>(attended_sequence<C>(p_.shape, p_.cache, batch).seqlen_k);
    return minimum(ceil_div(keys, C.block_n), p_.key_schedule.most_tiles);
  }
  /// Of sequences that differ so many that none is too long; else the nearest number, since those of one length that
  /// lacks a little would have twice as many parts (scheduled sparingly, all of them have as many as fit). A sequence
  /// that is not there has none.
  TILEWISE_INLINE int32_t parts_of_tiles(int32_t tiles) const {
    if constexpr (kSparing) {
      if (static_cast<float>(tiles) <= whole_tiles_) return tiles < 0 ? 0 : 1;
    }
    constexpr float kOfEven = kSparing ? 0.0f : 0.5f;
    const auto parts = static_cast<int32_t>(static_cast<float>(tiles) * parts_a_tile_ + (even_ ? kOfEven : 0.99f));
    return tiles < 0 ? 0 : maximum(1, minimum(parts, kSparing ? minimum(most_parts_, kMostSplits) : kMostSplits));
  }

  /// What `look` makes of the sequence that it looks for, by its number, its first part and its parts: -1 of others.
  template <class Look>
  TILEWISE_INLINE int32_t find(const Look& look) const {
    return runs_.find([this](int i) { return parts_of_tiles(tiles_[i]); }, look);
  }

  const Params& p_;
  SequenceRuns<Machine> runs_;
  int32_t tiles_[SequenceRuns<Machine>::kMostOfLane];  // -1: of no sequence
  float parts_a_tile_;
  bool even_;
  // Scheduled sparingly: that a sequence has, and up to which it stays whole.
  int32_t most_parts_;
  float whole_tiles_;
};

/// Part `place` of the parts of all sequences, and whose it is; count 0 where there are fewer. A sequence's first block
/// leaves for combine how many parts there are.
template <class Machine, auto C, class Params>
TILEWISE_INLINE KeyPart scheduled_part(const Params& p, int32_t place, bool is_first_block, int32_t& batch) {
  const KeyPart part = KeyScheduler<Machine, C, Params>(p).part_at(place, batch);
  if (p.key_schedule.parts && part.count > 0 && part.number == 0 && is_first_block && Machine::thread() == 0) {
    Machine::store_global(p.key_schedule.parts + batch, KeySchedule::pack(part.place, part.count));
  }
  return part;
}
/// A sequence's first part, but with the count of all, as that block has left it.
template <class Machine, class Params>
TILEWISE_INLINE KeyPart parts_left(const Params& p, int32_t batch) {
  const int64_t left = Machine::load_global(p.key_schedule.parts + batch);
  return {0, KeySchedule::count_of(left), KeySchedule::first_of(left)};
}

/// The rows of sequences in several parts, as pieces of work that combine's blocks take in turn. A block for each row
/// would be 32,768 blocks where 64 sequences have 128 heads of 512 columns, most of them without work.
template <class Machine, class Params>
class ScheduledRows {
 public:
  /// Pieces of a sequence in up to kRowSplits parts, and of one in more.
  TILEWISE_INLINE ScheduledRows(const Params& p, int32_t of_few, int32_t of_many)
      : p_(p), runs_(p.shape.batch_size), of_few_(of_few), of_many_(of_many) {
    runs_.for_each_of_lane([&](int i, int32_t batch) {
      const int32_t count = batch < p.shape.batch_size ? parts_left<Machine>(p, batch).count : 0;
      several_ |= (count > 1 ? 1u : 0u) << i;
      many_ |= (count > kRowSplits ? 1u : 0u) << i;
    });
    int32_t own = 0;
    for (int i = 0; i < runs_.a_lane(); ++i) own += pieces_of(i);
    before_ = runs_.sum_of_lanes_before(own);
  }

  /// Whose piece `number` of all is, with the sequence's first part, but the count of all; `number` becomes the piece's
  /// among the sequence's own. Past the last piece the count is 0.
  TILEWISE_INLINE KeyPart sequence_of(int32_t& number, int32_t& batch) const {
    int32_t first = before_, found = -1, own = -1;  // the last two in the lane that has it
    TILEWISE_NO_UNROLL
    for (int i = 0; i < runs_.a_lane(); ++i) {
      const int32_t in_sequence = number - first, pieces = pieces_of(i);
      if (in_sequence >= 0 && in_sequence < pieces) found = runs_.begin() + i, own = in_sequence;
      first += pieces;
    }
    batch = highest_of_wave<Machine>(found);
    number = highest_of_wave<Machine>(own);
    return batch < 0 ? KeyPart{0, 0, 0} : parts_left<Machine>(p_, batch);
  }

 private:
  TILEWISE_INLINE int32_t pieces_of(int i) const {
    return (many_ >> i & 1u) != 0 ? of_many_ : (several_ >> i & 1u) != 0 ? of_few_ : 0;
  }

  const Params& p_;
  SequenceRuns<Machine> runs_;
  int32_t of_few_, of_many_, before_ = 0;  // the last: pieces of all lanes before
  uint32_t several_ = 0, many_ = 0;        // a bit for each of the lane's sequences: whether it has such parts
  static_assert(SequenceRuns<Machine>::kMostOfLane <= 32);
};

}  // namespace tilewise::device
