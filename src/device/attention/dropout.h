// Dropout over a fragment. One Philox call serves all elements of a lane that share its words (a query, a group of 32
// keys and a pair of keys in 8); which those are follows from the layout at compile time.
#pragma once

#include "device/attention/scores.h"
#include "device/common/philox.h"

namespace tilewise::device {

/// The two halves of a call's seed and offset, read from memory where they live there.
struct DropoutSeed {
  uint64_t seed, offset;
};
TILEWISE_INLINE DropoutSeed dropout_seed(const ScoreParams& p) {
  if (!p.seed_and_offset) return {p.seed, p.offset};
  return {static_cast<uint64_t>(p.seed_and_offset[0]),
          static_cast<uint64_t>(p.seed_and_offset[p.seed_and_offset_stride])};
}

/// Rounds of some calls side by side, unrolled: the keys of all rounds are found once, in uniform registers, and
/// nothing is moved between two rounds.
template <int kRounds, int kCalls>
TILEWISE_INLINE void work_rounds(PhiloxWords (&words)[kCalls], PhiloxKey key) {
  TILEWISE_UNROLL
  for (int round = 0; round < kRounds; ++round) {
    TILEWISE_UNROLL
    for (PhiloxWords& call : words) call = philox_round(call, key);
    key = next_round_key(key);
  }
}

enum DrawSide : int { kQueriesAreRows, kKeysAreRows };

/// A lane's elements in sets that share a Philox call. Element (r * kColTiles + c) * kRegisters + i is register
/// i of tile [r][c]. Rows, or columns, of the fragment begin with a group of 32 keys, or with half of one where they
/// are 16.
template <class Scores, DrawSide kSide>
struct DrawSets {
  using FragmentLayout = typename Scores::FragmentLayout;
  static constexpr int kElements = Scores::kRowTiles * Scores::kColTiles * FragmentLayout::kRegisters, kMost = 8;
  int count = 0, size[kElements] = {}, member[kElements][kMost] = {};

  static constexpr int reg(int element) { return element % FragmentLayout::kRegisters; }
  static constexpr int col_tile(int element) { return element / FragmentLayout::kRegisters % Scores::kColTiles; }
  static constexpr int row_tile(int element) { return element / FragmentLayout::kRegisters / Scores::kColTiles; }
  static constexpr int slot(int element) {
    return row_tile(element) * FragmentLayout::kRowSlots + FragmentLayout::slot(reg(element));
  }
  TILEWISE_INLINE static constexpr int row(int lane, int element) {
    return row_tile(element) * FragmentLayout::kRows + FragmentLayout::place(lane, reg(element)).row;
  }
  TILEWISE_INLINE static constexpr int col(int lane, int element) {
    return col_tile(element) * FragmentLayout::kCols + FragmentLayout::place(lane, reg(element)).col;
  }
  TILEWISE_INLINE static constexpr int key(int lane, int element) {
    return kSide == kKeysAreRows ? row(lane, element) : col(lane, element);
  }
  TILEWISE_INLINE static constexpr int query(int lane, int element) {
    return kSide == kKeysAreRows ? col(lane, element) : row(lane, element);
  }
  static constexpr bool share_words(int i, int j) {
    const int a = key(0, i), b = key(0, j);
    return query(0, i) == query(0, j) && a / 32 == b / 32 && a % 8 / 2 == b % 8 / 2;
  }

  /// Which word of a call an element of a lane has.
  TILEWISE_INLINE static constexpr int word(int lane, int element) { return key(lane, element) % 32 / 8; }
  static constexpr int last_word(int element) { return word(FragmentLayout::kLanes - 1, element); }

  /// Whether an element's word is that of the first lane, or of the last one, in every lane: for_each_member() takes it
  /// for granted.
  static constexpr bool has_known_words() {
    for (int element = 0; element < kElements; ++element) {
      for (int lane = 1; lane < FragmentLayout::kLanes; ++lane) {
        const int own = word(lane, element);
        if (own != word(0, element) && own != last_word(element)) return false;
      }
    }
    return true;
  }
  /// Whether it is the same in every lane.
  static constexpr bool has_fixed_words() {
    for (int element = 0; element < kElements; ++element) {
      if (last_word(element) != word(0, element)) return false;
    }
    return has_known_words();
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
template <class Sets_>
struct DrawTable {
  using Sets = Sets_;
  static constexpr Sets kSets{};
};

/// apply(Index<set>) for each set.
template <class Table, class Apply>
TILEWISE_INLINE void for_each_set(const Apply& apply) {
  for_each_index<0, Table::kSets.count>(apply);
}

/// Whether a draw, half of a word, keeps its element. `half` is a constant in most layouts, where the upper one is
/// compared in place.
TILEWISE_INLINE bool is_kept(uint32_t word, int half, uint32_t threshold) {
  return (half == 0 ? word << 16 : word) >= threshold << 16;
}

/// apply(Index<element>, kept) for each element of a set, whose words these are.
template <class Table, int kSet, class Apply>
TILEWISE_INLINE void for_each_member(int lane, const PhiloxWords& words, uint32_t threshold, const Apply& apply) {
  for_each_index<0, Table::kSets.size[kSet]>([&](auto member) {
    constexpr int kElement = Table::kSets.member[kSet][decltype(member)::value];
    constexpr int kWord = Table::Sets::word(0, kElement), kLast = Table::Sets::last_word(kElement);
    const int half = Table::Sets::key(lane, kElement) % 2;
    uint32_t word = words.word[kWord];
    if (kLast != kWord && Table::Sets::word(lane, kElement) != kWord) word = words.word[kLast];
    apply(Index<kElement>{}, is_kept(word, half, threshold));
  });
}

/// The draws of a fragment whose rows are queries: a call's words for each set of its elements.
template <class Scores>
struct FragmentDraws {
  using Machine = typename Scores::Ops::Machine;
  using Sets = DrawSets<Scores, kQueriesAreRows>;
  using Table = DrawTable<Sets>;
  static_assert(Sets::has_known_words() && (Scores::kCols % 32 == 0 || Scores::kCols == 16));

  template <int kSet, class Row>
  TILEWISE_INLINE static PhiloxWords words(const DropoutSeed& seed, const Row (&rows)[Scores::kSlots],
                                           int32_t first_key) {
    constexpr int kFirst = Table::kSets.member[kSet][0];
    const RowScore& row = rows[Sets::slot(kFirst)];
    const auto key = static_cast<uint32_t>(first_key + Sets::key(Machine::lane(), kFirst));
    PhiloxWords words =
        dropout_words(seed.seed, seed.offset, row.batch_head, static_cast<uint32_t>(row.query), key / 32, key % 8 / 2);
    // 16 keys that are the upper half of their group have its upper words.
    if (Scores::kCols == 16 && first_key % 32 != 0) words.word[0] = words.word[2], words.word[1] = words.word[3];
    return words;
  }

  /// Clears what a set drops. kScaled: and multiplies the rest by dropout_scale.
  template <int kSet, bool kScaled>
  TILEWISE_INLINE static void apply(Scores& P, const ScoreParams& p, const PhiloxWords& words) {
    for_each_member<Table, kSet>(Machine::lane(), words, p.dropout_threshold, [&](auto element, bool kept) {
      constexpr int kElement = decltype(element)::value;
      auto&& x = P.tile[Sets::row_tile(kElement)][Sets::col_tile(kElement)][Sets::reg(kElement)];
      x = kept ? (kScaled ? x * p.dropout_scale : x) : 0.0f;
    });
  }
};

/// Clears what is dropped, where rows are queries. kScaled: and multiplies the rest by dropout_scale.
template <bool kScaled, class Scores, class Row>
TILEWISE_INLINE void apply_dropout(Scores& P, const ScoreParams& p, const DropoutSeed& seed,
                                   const Row (&rows)[Scores::kSlots], int32_t first_key) {
  using Draws = FragmentDraws<Scores>;
  for_each_set<typename Draws::Table>([&](auto set) {
    constexpr int kSet = decltype(set)::value;
    Draws::template apply<kSet, kScaled>(P, p, Draws::template words<kSet>(seed, rows, first_key));
  });
}

/// A bit for each element of a lane.
template <int kElements>
struct KeptBits {
  static constexpr int kWords = ceil_div(kElements, 32);
  uint32_t bits[kWords] = {};
  TILEWISE_INLINE void set(int element, bool kept) {
    bits[element / 32] |= static_cast<uint32_t>(kept) << (element % 32);
  }
  TILEWISE_INLINE bool holds(int element) const { return (bits[element / 32] >> (element % 32) & 1u) != 0; }
};

/// Which elements survive, where rows are keys and begin with a group of 32 of them.
template <class Scores>
TILEWISE_INLINE void draw_kept(KeptBits<DrawSets<Scores, kKeysAreRows>::kElements>& kept, const ScoreParams& p,
                               const DropoutSeed& seed, uint32_t batch_head, int32_t first_query, int32_t first_key) {
  using Machine = typename Scores::Ops::Machine;
  using Sets = DrawSets<Scores, kKeysAreRows>;
  using Table = DrawTable<Sets>;
  static_assert(Sets::has_fixed_words());
  const int lane = Machine::not_hoisted(Machine::lane());
  for_each_set<Table>([&](auto set) {
    constexpr int kSet = decltype(set)::value, kFirst = Table::kSets.member[kSet][0];
    const auto key = static_cast<uint32_t>(first_key + Sets::key(lane, kFirst));
    const auto query = static_cast<uint32_t>(first_query + Sets::query(lane, kFirst));
    const PhiloxWords words = dropout_words(seed.seed, seed.offset, batch_head, query, key / 32, key % 8 / 2);
    for_each_member<Table, kSet>(lane, words, p.dropout_threshold,
                                 [&](auto element, bool survives) { kept.set(decltype(element)::value, survives); });
  });
}

/// The word that decides a key, chosen without an indexed array, which would live in memory.
TILEWISE_INLINE uint32_t word_of_key(const PhiloxWords& words, uint32_t key) {
  const uint32_t group = key % 32 / 8;
  const uint32_t low = group & 1 ? words.word[1] : words.word[0], high = group & 1 ? words.word[3] : words.word[2];
  return group & 2 ? high : low;
}

/// Whether one position survives, for fragments whose neighbours in a lane differ in the query.
TILEWISE_INLINE bool keeps(const ScoreParams& p, const DropoutSeed& seed, uint32_t batch_head, int32_t query,
                           int32_t key) {
  const auto k = static_cast<uint32_t>(key);
  const PhiloxWords words =
      dropout_words(seed.seed, seed.offset, batch_head, static_cast<uint32_t>(query), k / 32, k % 8 / 2);
  return (word_of_key(words, k) >> (16 * (k % 2)) & 0xFFFFu) >= p.dropout_threshold;
}

/// The same as above where columns are any keys, by key_at(): each draws for itself.
template <bool kScaled, class Scores, class Row, class Keys>
TILEWISE_INLINE void apply_dropout(Scores& P, const ScoreParams& p, const DropoutSeed& seed,
                                   const Row (&rows)[Scores::kSlots], const Keys& keys) {
  P.for_each(Scores::Ops::Machine::lane(), [&](int slot, int col, auto&& x) {
    const RowScore& row = rows[slot];
    const float kept = kScaled ? x * p.dropout_scale : x;
    x = keeps(p, seed, row.batch_head, row.query, key_at(keys, col)) ? kept : 0.0f;
  });
}

}  // namespace tilewise::device
