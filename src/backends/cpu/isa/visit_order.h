// In which order a decode call visits keys that lie where a table says, and what it asks memory for meanwhile.
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/elements.h"

namespace tilewise::backends::cpu {

/// Positions of a block's keys. Whole blocks are read in portions: kTogether adjacent keys of each quarter, so that
/// four small pages are read side by side. One after the other, each would keep its reader waiting for its first lines,
/// and what processors prefetch beyond its end nobody asked for: in pages of 16 keys that took 40% longer.
template <int64_t kBlock, int64_t kTogether>
struct VisitOrder {
  static constexpr int64_t kQuarters = 4, kPortion = kQuarters * kTogether, kPortions = kBlock / kPortion;
  int8_t whole[kBlock] = {}, ascending[kBlock] = {};

  consteval VisitOrder() {
    for (int64_t i = 0; i < kBlock; ++i) {
      const int64_t quarter = i / kTogether % kQuarters, key = i / kPortion * kTogether + i % kTogether;
      whole[i] = static_cast<int8_t>(quarter * (kBlock / kQuarters) + key);
      ascending[i] = static_cast<int8_t>(i);
    }
  }
};

/// Rows of one head, of keys or of values, in the order they are visited: row i is at origin + places[order[i]].
struct RowList {
  const char* origin;
  const int64_t* places;
  const int8_t* order;

  [[nodiscard]] TILEWISE_INLINE const char* at(int64_t i) const { return origin + places[order[i]]; }
};

}  // namespace tilewise::backends::cpu
