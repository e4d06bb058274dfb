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
  TILEWISE_INLINE void draw(const ScoreParams& p, const DropoutSeed& seed, const RowScore (&rows)[Scores::kSlots],
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
  /// Of elements `element`, which is even, and the next.
  TILEWISE_INLINE uint32_t of(int element) const { return kept_[element / 2]; }

 private:
  uint32_t kept_[Sets::kElements / 2];
};

}  // namespace tilewise::device
