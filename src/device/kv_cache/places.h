// From keys of a sequence to places of the cache: pages by a table, or rows of a contiguous one.
#pragma once

#include "device/tile/platform.h"

namespace tilewise::device {

/// Which places the keys of a block have. Those that none of its queries sees repeat one that is seen, so that no entry
/// of a table is read that no key needs.
template <class Machine, int kPageSize>
struct CachePlaces {
  const int32_t* block_table;              // of the sequence
  int32_t first_place, begin, end, pages;  // keys [begin, end) are seen, key 0 at first_place; pages of the cache

  TILEWISE_INLINE int32_t place_of(int32_t key) const { return first_place + maximum(minimum(key, end - 1), begin); }
  TILEWISE_INLINE int32_t page_of(int32_t place) const {
    if constexpr (kPageSize == 0) return 0;
    return static_cast<int32_t>(
        clamp_to(Machine::load_global(block_table + place / maximum(kPageSize, 1)), 0, pages - 1));
  }
  TILEWISE_INLINE static int32_t within_page(int32_t place) {
    return kPageSize == 0 ? place : place % maximum(kPageSize, 1);
  }
};

}  // namespace tilewise::device
