// Dropout of the backward kernel: the warpgroup that multiplies dQ, which waits most of the time, makes the draws of a
// tile of queries ahead of the computing ones and leaves each of their lanes a bit for each score.
#pragma once

#include "device/attention/dropout.h"
#include "device/hopper/bwd_shared.h"
#include "device/hopper/bwd_work.h"
#include "device/hopper/warpgroup.h"

namespace tilewise::device {

/// Makes bits as KeptWords has them. A call of Philox serves 8 keys of a query, which four computing lanes hold: one
/// lane here makes all bits of four of them, or a half or a quarter.
template <class Machine, HopperBwdConfig C>
class BwdDraws {
  using Shared = HopperBwdShared<Machine, C>;
  using Words = KeptWords<C>;
  static constexpr int kCalls = 2;  // at once: their rounds are chains of 10 cycles and more
  static constexpr int kLanesAPiece = kWarpgroupThreads / (Words::kOwners * Words::kCount),
                       kColTiles = Words::kColTiles / kLanesAPiece;

 public:
  /// Of a step's tile of queries, once the computing warps have read those of the one before. What can be is found
  /// anew each time: this warpgroup has registers for its products, and few beside.
  TILEWISE_INLINE static void publish(const HopperBwdParams& p, Shared& shared, const BwdWork& work, int32_t step,
                                      int thread) {
    const BwdDraws draws(p, work);
    uint32_t kept[4] = {0, 0, 0, 0};
    const int index = thread / kLanesAPiece, share = thread % kLanesAPiece;
    const int part = index / Words::kOwners, owner = index % Words::kOwners;
    const QueryPlace place = query_place<C>(work, step);
    const int32_t query = place.tile * C.block_m + 64 * part + 8 * kColTiles * share + 2 * (owner % 4);
    const auto batch_head =
        static_cast<uint32_t>(work.batch * p.shape.num_heads_q + work.head * work.group + place.head);
    if (!C.lengths || work.first_key % 32 == 0) {
      draws.draw(kept, batch_head, query, owner);
    } else {
      draws.draw_each(kept, batch_head, query, owner);
    }
    TILEWISE_UNROLL
    for (uint32_t& word : kept) {
      word <<= kColTiles * (kLanesAPiece - 1 - share);
      TILEWISE_UNROLL
      for (int lane = 1; lane < kLanesAPiece; lane *= 2) word |= Machine::shuffle_xor(word, lane);
    }
    shared.draw_ring.empty[0].wait(static_cast<uint32_t>(step + 1) % 2);
    if (share == 0) {
      TILEWISE_UNROLL
      for (int word = 0; word < 4; ++word) Machine::store_shared(&shared.draws.kept[part][owner][word], kept[word]);
    }
    arrive_as_lanes(shared.draw_ring.full[0]);
  }

 private:
  TILEWISE_INLINE BwdDraws(const HopperBwdParams& p, const BwdWork& work) : p_(p), work_(work) {}

  /// Rows of the block are groups of 32 keys.
  TILEWISE_INLINE void draw(uint32_t (&kept)[4], uint32_t batch_head, int32_t query, int owner) const {
    const auto group = static_cast<uint32_t>(work_.first_key / 32 + owner / 16);
    const DropoutSeed seed = dropout_seed(p_.score);
    const auto pair = static_cast<uint32_t>(owner / 4 % 4);
    const DropoutCalls calls = dropout_calls(seed.seed, seed.offset, batch_head, group, pair);
    TILEWISE_NO_UNROLL
    for (int c = 0; c < kColTiles; c += kCalls / 2) {
      PhiloxWords words[kCalls];
      TILEWISE_UNROLL
      for (int call = 0; call < kCalls; ++call) {
        words[call] = calls.begin(static_cast<uint32_t>(query + 8 * (c + call / 2) + call % 2));
      }
      work_rounds<kPhiloxRounds - DropoutCalls::kRounds>(words, calls.key);
      TILEWISE_UNROLL
      for (int call = 0; call < kCalls; ++call) add_bits(kept, words[call], call % 2);
    }
  }

  /// Of one column of the next column tile; the first column makes room for it.
  TILEWISE_INLINE void add_bits(uint32_t (&kept)[4], const PhiloxWords& words, int column) const {
    if (column == 0) {
      TILEWISE_UNROLL
      for (uint32_t& word : kept) word <<= 1;
    }
    TILEWISE_UNROLL
    for (int key = 0; key < 8; ++key) {
      const int eight = key / 2, half = key % 2;  // of the group's four eights of keys
      const bool keeps = is_kept(words.word[eight], half, p_.score.dropout_threshold);
      kept[eight / 2 * 2 + half] |= keeps ? Words::last_bit(eight % 2, column) : 0;
    }
  }

  /// Rows begin anywhere, as left padding has them: a call for each score.
  TILEWISE_INLINE void draw_each(uint32_t (&kept)[4], uint32_t batch_head, int32_t query, int owner) const {
    const DropoutSeed seed = dropout_seed(p_.score);
    const int32_t first_key = work_.first_key + owner / 16 * 32 + 2 * (owner / 4 % 4);
    TILEWISE_NO_UNROLL
    for (int c = 0; c < kColTiles; ++c) {
      TILEWISE_UNROLL
      for (uint32_t& word : kept) word <<= 1;
      TILEWISE_NO_UNROLL
      for (int score = 0; score < 16; ++score) {
        const int word = score / 4, slot = score / 2 % 2, column = score % 2;
        const auto key = static_cast<uint32_t>(first_key + word / 2 * 16 + slot * 8 + word % 2);
        PhiloxWords drawn[1] = {dropout_counter(seed.offset, batch_head, static_cast<uint32_t>(query + 8 * c + column),
                                                key / 32, key % 8 / 2)};
        work_rounds<kPhiloxRounds>(drawn, dropout_key(seed.seed, seed.offset));
        const uint32_t bit = is_kept(word_of_key(drawn[0], key), key % 2, p_.score.dropout_threshold)
                                 ? Words::last_bit(slot, column)
                                 : 0;
        TILEWISE_UNROLL
        for (int i = 0; i < 4; ++i) kept[i] |= i == word ? bit : 0;  // an index that changes would put them in memory
      }
    }
  }

  /// A loop: unrolled, the keys of all rounds would wait in registers.
  template <int kRounds, int kCalls_>
  TILEWISE_INLINE static void work_rounds(PhiloxWords (&words)[kCalls_], PhiloxKey key) {
    const auto work_round = [&] {
      TILEWISE_UNROLL
      for (PhiloxWords& call : words) call = philox_round(call, key);
      key = next_round_key(key);
    };
    if constexpr (kRounds % 2 != 0) work_round();
    TILEWISE_NO_UNROLL
    for (int round = kRounds % 2; round < kRounds; round += 2) work_round(), work_round();
  }

  const HopperBwdParams& p_;
  const BwdWork& work_;
};

}  // namespace tilewise::device
