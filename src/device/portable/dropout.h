// Dropout over a fragment: one Philox call serves every element of the lane that shares its words
// (a query, a group of 32 keys and a pair of keys in 8), found at compile time from the layout.
#pragma once

#include "device/portable/scores.h"

namespace tilewise::device {

/// Queries are the fragment's rows: whether registers i and j of two column tiles share a call.
template <class Layout>
TILEWISE_INLINE constexpr bool share_words(int ci, int i, int cj, int j) {
  if (Layout::slot(i) != Layout::slot(j)) return false;
  const int a = ci * Layout::kCols + Layout::place(0, i).col, b = cj * Layout::kCols + Layout::place(0, j).col;
  return a / 32 == b / 32 && a % 8 / 2 == b % 8 / 2;
}

/// keep(slot, column, value&, kept) for each element, in the fragment's order.
template <class Machine, class Scores, class Apply>
TILEWISE_INLINE void for_each_draw(Scores& scores, const AttentionParams& p, const DropoutSeed& seed,
                                   const RowScore (&rows)[Scores::kSlots], int32_t first_key, const Apply& apply) {
  using Layout = typename Scores::Layout;
  const int lane = Machine::lane();
  TILEWISE_UNROLL
  for (int r = 0; r < Scores::kRowTiles; ++r) {
    TILEWISE_UNROLL
    for (int c = 0; c < Scores::kColTiles; ++c) {
      TILEWISE_UNROLL
      for (int i = 0; i < Layout::kRegisters; ++i) {
        // The first element of a set draws for all of it.
        bool first = true;
        TILEWISE_UNROLL
        for (int cj = 0; cj <= c; ++cj) {
          TILEWISE_UNROLL
          for (int j = 0; j < Layout::kRegisters; ++j) {
            if ((cj < c || j < i) && share_words<Layout>(cj, j, c, i)) first = false;
          }
        }
        if (!first) continue;
        const int slot = r * Layout::kRowSlots + Layout::slot(i);
        const int32_t key = first_key + c * Layout::kCols + Layout::place(lane, i).col;
        const PhiloxWords words =
            dropout_words(seed.seed, seed.offset, rows[slot].batch_head, static_cast<uint32_t>(rows[slot].query),
                          static_cast<uint32_t>(key) / 32, static_cast<uint32_t>(key) % 8 / 2);
        TILEWISE_UNROLL
        for (int cj = c; cj < Scores::kColTiles; ++cj) {
          TILEWISE_UNROLL
          for (int j = 0; j < Layout::kRegisters; ++j) {
            if (!share_words<Layout>(c, i, cj, j)) continue;
            const int col = cj * Layout::kCols + Layout::place(lane, j).col;
            const int word = (cj * Layout::kCols + Layout::place(0, j).col) % 32 / 8;  // the same in every lane
            const uint32_t draw = (words.word[word] >> (16 * (col % 2))) & 0xFFFFu;
            apply(slot, col, scores.tile[r][cj][j], draw >= p.dropout_threshold);
          }
        }
      }
    }
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
