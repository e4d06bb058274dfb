// Dropout of the backward kernel: a warpgroup makes the draws of a tile of queries ahead of the computing ones and
// leaves each of their lanes a bit for each score.
#pragma once

#include "device/attention/dropout.h"
#include "device/hopper/bwd_loader.h"
#include "device/sm90/warpgroup.h"

namespace tilewise::device {

/// Makes bits as KeptWords has them. A call of Philox serves 8 keys of a query, which four computing lanes hold: one
/// lane here makes all bits of four of them, or a half or a quarter.
template <class Machine, auto C>
class BwdDraws {
  using Shared = HopperBwdShared<Machine, C>;
  using Words = KeptWords<C>;
  static constexpr int kLanesAPiece = kWarpgroupThreads / (Words::kOwners * Words::kCount),
                       kColTiles = Words::kColTiles / kLanesAPiece;

 public:
  TILEWISE_INLINE BwdDraws(const BwdParamsOf<C>& p, Shared& shared, const BwdWork& work, const BwdRun& run, int thread)
      : p_(p),
        shared_(shared),
        work_(work),
        thread_(thread),
        share_(thread % kLanesAPiece),
        part_(thread / kLanesAPiece / Words::kOwners),
        owner_(thread / kLanesAPiece % Words::kOwners),
        place_(ring_place<1>(run.steps)) {}

  /// Of all tiles of a block, one after the other.
  TILEWISE_INLINE void run() {
    visit_heads([] {});
  }
  /// The same by a warpgroup whose first warp loads tiles. Where the draws of a tile have found their place, the tile
  /// two before is on its way to be handed back.
  TILEWISE_INLINE void run_beside(BwdLoader<Machine, C>& loader) {
    const bool loads = uniform<Machine>(thread_ / 32) == 0;
    if (work_.steps() == 0) return;
    if (loads) loader.begin(), loader.finish_keys();
    Machine::wave_sync();
    int32_t drawn = 0;
    visit_heads([&] {
      if (loads && drawn > 1 && loader.has_more()) loader.load_queries();
      Machine::wave_sync();
      ++drawn;
    });
  }

 private:
  /// then(): behind each tile.
  template <class Then>
  TILEWISE_INLINE void visit_heads(const Then& then) {
    TILEWISE_NO_UNROLL
    for (int32_t head = 0; head < work_.group; ++head) {
      const auto batch_head = static_cast<uint32_t>(work_.batch * p_.shape.num_heads_q + work_.query_head + head);
      const DropoutSeed seed = dropout_seed(p_.score);
      if (!C.lengths || work_.first_key % 32 == 0) {
        // Rows of the block are groups of 32 keys.
        const auto group = static_cast<uint32_t>(work_.first_key / 32 + owner_ / 16);
        const auto pair = static_cast<uint32_t>(owner_ / 4 % 4);
        const DropoutCalls calls = dropout_calls(seed.seed, seed.offset, batch_head);
        const DropoutColumn common = dropout_column(seed.seed, seed.offset, batch_head, group, pair);
        visit_head([&](uint32_t (&kept)[4], int32_t query) { draw(kept, calls, common, query); }, then);
      } else {
        visit_head([&](uint32_t (&kept)[4], int32_t query) { draw_each(kept, seed, batch_head, query); }, then);
      }
    }
  }
  template <class Draw, class Then>
  TILEWISE_INLINE void visit_head(const Draw& draw, const Then& then) {
    TILEWISE_NO_UNROLL
    for (int32_t tile = work_.queries.begin; tile < work_.queries.end; ++tile) {
      uint32_t kept[4] = {0, 0, 0, 0};
      draw(kept, tile * C.block_m + 64 * part_ + 8 * kColTiles * share_ + 2 * (owner_ % 4));
      publish(kept);
      then();
    }
  }

  /// Once the consumer warps have read those of the tile before.
  TILEWISE_INLINE void publish(uint32_t (&kept)[4]) {
    TILEWISE_UNROLL
    for (uint32_t& word : kept) {
      word <<= kColTiles * (kLanesAPiece - 1 - share_);
      TILEWISE_UNROLL
      for (int lane = 1; lane < kLanesAPiece; lane *= 2) word |= Machine::shuffle_xor(word, lane);
    }
    place_.wait_empty(shared_.draw_ring);
    if (share_ == 0) {
      TILEWISE_UNROLL
      for (int word = 0; word < 4; ++word) Machine::store_shared(&shared_.draws.kept[part_][owner_][word], kept[word]);
    }
    arrive_as_lanes(shared_.draw_ring.full[0]);
    place_.advance();
  }

  /// Two queries at a time. Of a call's words, whose halves are draws of two neighbouring keys, a bit of either half is
  /// left, which takes three instructions for two draws; at last words of a lane that computes are made of them.
  TILEWISE_INLINE void draw(uint32_t (&kept)[4], const DropoutCalls& calls, const DropoutColumn& common,
                            int32_t query) const {
    const uint32_t thresholds = p_.score.dropout_threshold * 0x10001u;
    uint32_t eights[4] = {0, 0, 0, 0};
    TILEWISE_NO_UNROLL
    for (int c = 0; c < kColTiles; ++c) {
      TILEWISE_UNROLL
      for (uint32_t& word : eights) word <<= 1;
      PhiloxWords words[2];
      TILEWISE_UNROLL
      for (int column = 0; column < 2; ++column) {
        words[column] = calls.begin(calls.of_query(static_cast<uint32_t>(query + 8 * c + column)), common);
      }
      work_rounds<kPhiloxRounds - DropoutCalls::kRounds>(words, calls.key);
      TILEWISE_UNROLL
      for (int column = 0; column < 2; ++column) {
        const uint32_t bits = Words::last_bit(0, column) | Words::last_bit(1, column);
        TILEWISE_UNROLL
        for (int eight = 0; eight < 4; ++eight) {
          eights[eight] |=
              Machine::template halves_at_least<C.normal_bound != 0>(words[column].word[eight], thresholds) & bits;
        }
      }
    }
    TILEWISE_UNROLL
    for (int word = 0; word < 4; word += 2) {
      kept[word] = Machine::permute_bytes(eights[word], eights[word + 1], 0x5410u);      // of even keys
      kept[word + 1] = Machine::permute_bytes(eights[word], eights[word + 1], 0x7632u);  // of odd ones
    }
  }

  /// Rows begin anywhere, as left padding has them: a call for each score.
  TILEWISE_INLINE void draw_each(uint32_t (&kept)[4], const DropoutSeed& seed, uint32_t batch_head,
                                 int32_t query) const {
    const int32_t first_key = work_.first_key + owner_ / 16 * 32 + 2 * (owner_ / 4 % 4);
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

  const BwdParamsOf<C>& p_;
  Shared& shared_;
  const BwdWork& work_;
  const int thread_, share_, part_, owner_;
  RingPlace<1> place_;
};

}  // namespace tilewise::device
