// Which rows belong to which group, found by every wave for itself from offsets or counts in device memory, whatever
// numbers these are: offsets are clamped to the rows that there are and never fall, a negative count is 0.
#pragma once

#include "device/product/params.h"
#include "device/tile/platform.h"

namespace tilewise::device {

/// Rows [first, first + rows) of a group; of group -1: of none, before the first or behind the last.
struct GroupRows {
  int32_t group;
  int32_t rows;
  int64_t first;
};

/// The value that lanes of lower numbers come to by combine(), from `start` on, and that of all lanes.
template <class T>
struct LanePrefix {
  T before, all;
};
template <class Machine, class Combine>
TILEWISE_INLINE LanePrefix<int32_t> prefix_of_lanes(int32_t value, int32_t start, const Combine& combine) {
  LanePrefix<int32_t> prefix{start, value};
  TILEWISE_UNROLL
  for (int bit = 1; bit < Machine::kLanes; bit *= 2) {
    const int32_t other = shuffle_xor<Machine>(prefix.all, bit);
    if (Machine::lane() & bit) prefix.before = combine(prefix.before, other);
    prefix.all = combine(prefix.all, other);
  }
  prefix.all = combine(prefix.all, start);
  return prefix;
}

/// Walks the groups, a wave's lanes' worth at a time. kType: GroupsType. There are less than 2^31 rows.
template <class Machine, int kType>
class Groups {
 public:
  TILEWISE_INLINE Groups(const ProductGroups& groups, int64_t rows)
      : p_(groups), rows_(static_cast<int32_t>(rows)), end_(kType == kGroupsOffsets ? clamped(number(0)) : 0) {}

  /// The tile of that number of block_m rows: those of rows before the first group come first, then each group's, then
  /// those behind the last. Past all of them it has no rows. All lanes of a wave ask for the same one.
  TILEWISE_INLINE GroupRows tile(int32_t index, int32_t block_m) {
    if constexpr (kType == kGroupsNone) return part({0, rows_, 0}, index, block_m);
    const int32_t before = ceil_div(end_, block_m);
    if (index < before) return part({-1, end_, 0}, index, block_m);
    int32_t tiles = before;
    for (int32_t first = 0; first < p_.num_groups; first += Machine::kLanes) {
      const GroupRows mine = next(first);
      const int32_t own = ceil_div(mine.rows, block_m);
      const auto prefix = prefix_of_lanes<Machine>(own, 0, [](int32_t a, int32_t b) { return a + b; });
      const int32_t rest = index - tiles - prefix.before;
      if (index < tiles + prefix.all) {
        return part(of_lane(mine, rest >= 0 && rest < own),
                    index - tiles - sum_of_wave<Machine>(rest >= 0 && rest < own ? prefix.before : 0), block_m);
      }
      tiles += prefix.all;
    }
    return part({-1, rows_ - end_, end_}, index - tiles, block_m);
  }

  /// All rows of a group. All lanes of a wave ask for the same one.
  TILEWISE_INLINE GroupRows group(int32_t index) {
    if constexpr (kType == kGroupsNone) return {0, rows_, 0};
    for (int32_t first = 0;; first += Machine::kLanes) {
      const GroupRows mine = next(first);
      if (index < first + Machine::kLanes) return of_lane(mine, first + Machine::lane() == index);
    }
  }

 private:
  TILEWISE_INLINE static GroupRows part(const GroupRows& whole, int32_t tile, int32_t block_m) {
    const int64_t skip = int64_t{tile} * block_m;
    const int64_t rest = maximum(whole.rows - skip, int64_t{0});
    return {whole.group, static_cast<int32_t>(minimum(rest, int64_t{block_m})), whole.first + skip};
  }

  TILEWISE_INLINE int32_t clamped(int64_t number) const {
    return static_cast<int32_t>(maximum(int64_t{0}, minimum(number, int64_t{rows_})));
  }
  TILEWISE_INLINE int64_t number(int64_t index) const {
    const int64_t at = index * p_.stride;
    if (p_.bytes == 8) return Machine::load_global(static_cast<const int64_t*>(p_.data) + at);
    return Machine::load_global(static_cast<const int32_t*>(p_.data) + at);
  }

  /// The rows of group first + lane; of one that there is not, none. From here on end_ is where the last of them ends.
  TILEWISE_INLINE GroupRows next(int32_t first) {
    const int32_t group = first + Machine::lane();
    const bool is = group < p_.num_groups;
    int32_t value = 0;
    if (is) value = clamped(number(kType == kGroupsOffsets ? group + 1 : group));
    const auto prefix = prefix_of_lanes<Machine>(value, end_, [this](int32_t a, int32_t b) {
      if constexpr (kType == kGroupsOffsets) return maximum(a, b);
      const uint32_t sum = static_cast<uint32_t>(a) + static_cast<uint32_t>(b);
      return static_cast<int32_t>(minimum(sum, static_cast<uint32_t>(rows_)));
    });
    int32_t end = prefix.before;
    if (is) end = kType == kGroupsOffsets ? maximum(end, value) : clamped(int64_t{end} + value);
    end_ = uniform<Machine>(prefix.all);
    return {group, end - prefix.before, prefix.before};
  }

  /// What one lane has.
  TILEWISE_INLINE static GroupRows of_lane(const GroupRows& mine, bool here) {
    const int32_t group = sum_of_wave<Machine>(here ? mine.group : 0),
                  rows = sum_of_wave<Machine>(here ? mine.rows : 0);
    return {group, rows, sum_of_wave<Machine>(here ? static_cast<int32_t>(mine.first) : 0)};
  }

  const ProductGroups& p_;
  int32_t rows_, end_;
};

}  // namespace tilewise::device
