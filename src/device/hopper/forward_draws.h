// Dropout of the forward kernel: draws as halves of words, all ones where a weight stays, so that rounded weights are
// cleared two at a time.
#pragma once

#include "device/attention/dropout.h"

namespace tilewise::device {

/// For each two neighbouring weights of a lane, which an operand has in one word, the draws of both. Three
/// instructions a pair (four with a bound that is no normal number), two of them before there are weights, where
/// comparing and choosing one by one take 5.3.
template <class Scores, bool kNormalBound>
class KeptPairs {
  using Machine = typename Scores::Ops::Machine;
  using Draws = FragmentDraws<Scores>;
  using Table = typename Draws::Table;
  using Sets = typename Draws::Sets;

 public:
  template <class Row>
  TILEWISE_INLINE void draw(const ScoreParams& p, const DropoutSeed& seed, const Row (&rows)[Scores::kSlots],
                            int32_t first_key) {
    const uint32_t thresholds = p.dropout_threshold * 0x10001u;
    for_each_set<Table>([&](auto set) {
      constexpr int kSet = decltype(set)::value;
      const PhiloxWords words = Draws::template words<kSet>(seed, rows, first_key);
      for_each_index<0, Table::kSets.size[kSet] / 2>([&](auto pair) {
        constexpr int kElement = Table::kSets.member[kSet][2 * decltype(pair)::value];
        static_assert(kElement % 2 == 0 && Table::kSets.member[kSet][2 * decltype(pair)::value + 1] == kElement + 1);
        kept_[kElement / 2] =
            Machine::template halves_at_least<kNormalBound>(words.word[Sets::key(0, kElement) % 32 / 8], thresholds);
      });
    });
  }
  /// What calls for a tile of keys have in common.
  template <class Columns>
  TILEWISE_INLINE void fetch(const Columns& columns) {
    for_each_index<0, kGroups>([&](auto group) {
      constexpr int kGroup = decltype(group)::value;
      columns_[kGroup] =
          Machine::template load_shared<DropoutColumn>(&columns[kPairs * kGroup + Machine::lane() % kPairs]);
    });
  }
  /// draw() by that, for 32 keys from 32 kFrom on to 32 kTo.
  template <int kFrom, int kTo, class Row>
  TILEWISE_INLINE void draw_fetched(const ScoreParams& p, const DropoutSeed& seed, const Row (&rows)[Scores::kSlots]) {
    constexpr int kTilesOfGroup = 4;
    const uint32_t thresholds = p.dropout_threshold * 0x10001u;
    const DropoutCalls calls = dropout_calls(seed.seed, seed.offset, rows[0].batch_head);
    for_each_index<0, Scores::kSlots>([&](auto slot) {
      constexpr int kSlot = decltype(slot)::value;
      const WordPair of_query = calls.of_query(static_cast<uint32_t>(rows[kSlot].query));
      for_each_index<kFrom, kTo>([&](auto group) {
        constexpr int kGroup = decltype(group)::value;
        PhiloxWords words[1] = {DropoutCalls::begin(of_query, columns_[kGroup])};
        work_rounds<kPhiloxRounds - DropoutCalls::kRounds>(words, calls.key);
        for_each_index<0, kTilesOfGroup>([&](auto tile) {
          constexpr int kTile = decltype(tile)::value;
          kept_[(kGroup * kTilesOfGroup + kTile) * Scores::kSlots + kSlot] =
              Machine::template halves_at_least<kNormalBound>(words[0].word[kTile], thresholds);
        });
      });
    });
  }
  /// Of elements `element`, which is even, and the next.
  TILEWISE_INLINE uint32_t of(int element) const { return kept_[element / 2]; }

 private:
  static constexpr int kGroups = Scores::kCols / 32, kPairs = 4;

  uint32_t kept_[Sets::kElements / 2];
  DropoutColumn columns_[kGroups > 0 ? kGroups : 1];
};

}  // namespace tilewise::device
