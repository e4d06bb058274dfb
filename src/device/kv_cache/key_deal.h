// Parts of the keys where sequences differ in length by as much as the device alone knows: each sequence has as many
// as its keys are of all, so that the blocks of one long sequence among short ones end together.
#pragma once

#include "device/attention/config.h"
#include "device/attention/grid_place.h"
#include "device/kv_cache/sequence.h"
#include "device/tile/contract.h"

namespace tilewise::device {

/// Whether a kernel's parts are dealt out so, and not as many for each sequence.
template <auto C>
constexpr bool deals_keys() {
  if constexpr (requires { C.deals_keys; }) {
    return C.deals_keys != 0;
  } else {
    return false;
  }
}

/// Every wave works the deal out for itself, a run of sequences in each lane: it waits for lengths once, and for some
/// shuffles.
template <class Machine, auto C, class Params>
class KeyDealer {
 public:
  TILEWISE_INLINE explicit KeyDealer(const Params& p) : p_(p) {
    const auto batches = static_cast<int32_t>(p.shape.batch_size);
    a_lane_ = ceil_div(batches, Machine::kLanes);
    begin_ = Machine::lane() * a_lane_;
    int32_t all = 0, most = 0;
    for_each_of_lane([&](int i) {
      tiles_[i] = begin_ + i < batches ? tiles_of(begin_ + i) : -1;
      all += maximum(tiles_[i], 0);
      most = maximum(most, tiles_[i]);
    });
    const auto all_tiles = static_cast<float>(sum_of_wave<Machine>(all));
    const auto most_tiles = static_cast<float>(highest_of_wave<Machine>(most));
    even_ = most_tiles * static_cast<float>(batches) <= kEven * all_tiles;
    const float wanted = all_tiles * (even_ ? p.deal.of_even_parts : p.deal.of_parts);
    const float a_part = maximum(maximum(wanted, p.deal.fewest_tiles), most_tiles * (1.0f / kMostSplits));
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
  static constexpr int kMostOfLane = kMostDealtSequences / 32;  // where a wave has 32 lanes, or more

  /// visit(i) for each sequence of a lane.
  template <class Visit>
  TILEWISE_INLINE void for_each_of_lane(const Visit& visit) const {
    TILEWISE_UNROLL
    for (int i = 0; i < kMostOfLane; ++i) {
      if (i < a_lane_) visit(i);
    }
  }
  TILEWISE_INLINE int32_t tiles_of(int32_t batch) const {
    const auto keys = static_cast<int32_t>(attended_sequence<C>(p_.shape, p_.cache, batch).seqlen_k);
    return minimum(ceil_div(keys, C.block_n), p_.deal.most_tiles);
  }
  /// Of sequences that differ so many that none is too long; else the nearest number, since those of one length that
  /// lacks a little would have twice as many parts. A sequence that is not there has none.
  TILEWISE_INLINE int32_t parts_of_tiles(int32_t tiles) const {
    const auto parts = static_cast<int32_t>(static_cast<float>(tiles) * parts_a_tile_ + (even_ ? 0.5f : 0.99f));
    return tiles < 0 ? 0 : maximum(1, minimum(parts, kMostSplits));
  }

  /// What `look` makes of the sequence that it looks for, by its number, its first part and its parts: -1 of others.
  template <class Look>
  TILEWISE_INLINE int32_t find(const Look& look) const {
    int32_t own = 0;
    for_each_of_lane([&](int i) { own += parts_of_tiles(tiles_[i]); });
    int32_t first = 0, all = own;
    TILEWISE_UNROLL
    for (int bit = 1; bit < Machine::kLanes; bit *= 2) {
      const int32_t others = shuffle_xor<Machine>(all, bit);
      first += (Machine::lane() & bit) != 0 ? others : 0;
      all += others;
    }
    int32_t found = -1;
    for_each_of_lane([&](int i) {
      const int32_t count = parts_of_tiles(tiles_[i]);
      found = maximum(found, look(begin_ + i, first, count));
      first += count;
    });
    return highest_of_wave<Machine>(found);
  }

  const Params& p_;
  int32_t a_lane_, begin_;      // of sequences: in each lane, and the lane's first
  int32_t tiles_[kMostOfLane];  // -1: of no sequence
  float parts_a_tile_;
  bool even_;
};

}  // namespace tilewise::device
