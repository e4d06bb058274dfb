// Dropout over a fragment: one Philox call serves every element of the lane that shares its words
// (a query, a group of 32 keys and a pair of keys in 8), found at compile time from the layout.
#pragma once

#include "device/portable/scores.h"

namespace tilewise::device {

/// The elements of a lane in one row of tiles, in sets that share a Philox call: those of one slot,
/// group of 32 columns and pair of columns in 8. Element c * kRegisters + i is register i of tile c.
template <class Scores>
struct DrawSets {
  using Layout = typename Scores::Layout;
  static constexpr int kElements = Scores::kColTiles * Layout::kRegisters, kMost = 8;
  int count = 0, size[kElements] = {}, member[kElements][kMost] = {};

  static constexpr int tile(int element) { return element / Layout::kRegisters; }
  static constexpr int slot(int element) { return Layout::slot(element % Layout::kRegisters); }
  static constexpr int col(int lane, int element) {
    return tile(element) * Layout::kCols + Layout::place(lane, element % Layout::kRegisters).col;
  }
  static constexpr bool share_words(int i, int j) {
    const int a = col(0, i), b = col(0, j);
    return slot(i) == slot(j) && a / 32 == b / 32 && a % 8 / 2 == b % 8 / 2;
  }

  constexpr DrawSets() {
    for (int element = 0; element < kElements; ++element) {
      int set = 0;
      while (set < count && !share_words(member[set][0], element)) ++set;
      if (set == count) ++count;
      member[set][size[set]++] = element;
    }
  }
};

/// Read in constant expressions only: NVRTC leaves a table that a kernel indexes at run time unwritten.
template <class Scores>
struct DrawTable {
  static constexpr DrawSets<Scores> kSets{};
};

/// apply(slot, column, value&, kept) for each element.
template <class Machine, class Scores, class Apply>
TILEWISE_INLINE void for_each_draw(Scores& scores, const AttentionParams& p, const DropoutSeed& seed,
                                   const RowScore (&rows)[Scores::kSlots], int32_t first_key, const Apply& apply) {
  using Layout = typename Scores::Layout;
  using Sets = DrawSets<Scores>;
  const int lane = Machine::lane();
  TILEWISE_UNROLL
  for (int r = 0; r < Scores::kRowTiles; ++r) {
    for_each_index<0, DrawTable<Scores>::kSets.count>([&](auto set) {
      constexpr int kSet = decltype(set)::value, kFirst = DrawTable<Scores>::kSets.member[kSet][0];
      const int slot = r * Layout::kRowSlots + Sets::slot(kFirst);
      const auto key = static_cast<uint32_t>(first_key + Sets::col(lane, kFirst));
      const PhiloxWords words = dropout_words(seed.seed, seed.offset, rows[slot].batch_head,
                                              static_cast<uint32_t>(rows[slot].query), key / 32, key % 8 / 2);
      for_each_index<0, DrawTable<Scores>::kSets.size[kSet]>([&](auto member) {
        constexpr int kElement = DrawTable<Scores>::kSets.member[kSet][decltype(member)::value];
        constexpr int kWord = Sets::col(0, kElement) % 32 / 8;  // the same in every lane
        const int col = Sets::col(lane, kElement);
        const uint32_t draw = (words.word[kWord] >> (16 * (col % 2))) & 0xFFFFu;
        apply(slot, col, scores.tile[r][Sets::tile(kElement)][kElement % Layout::kRegisters],
              draw >= p.dropout_threshold);
      });
    });
  }
}

/// Whether one position survives, for fragments whose neighbours in a lane differ in the query. The
/// word is chosen without an indexed array, which would live in memory.
TILEWISE_INLINE bool keeps(const AttentionParams& p, const DropoutSeed& seed, uint32_t batch_head, int32_t query,
                           int32_t key) {
  const auto k = static_cast<uint32_t>(key);
  const PhiloxWords words =
      dropout_words(seed.seed, seed.offset, batch_head, static_cast<uint32_t>(query), k / 32, k % 8 / 2);
  const uint32_t group = k % 32 / 8;
  const uint32_t low = group & 1 ? words.word[1] : words.word[0], high = group & 1 ? words.word[3] : words.word[2];
  const uint32_t word = group & 2 ? high : low;
  return (word >> (16 * (k % 2)) & 0xFFFFu) >= p.dropout_threshold;
}

}  // namespace tilewise::device
