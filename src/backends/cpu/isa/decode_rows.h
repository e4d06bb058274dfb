// Rows of keys or values as decoding reads them: a stride apart, or where a table says.
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/fetch_ahead.h"
#include "backends/cpu/isa/visit_order.h"

namespace tilewise::backends::cpu {

/// The fetchers of keys and of values, which go on together.
struct FetchBoth {
  FetchAhead k, v;

  TILEWISE_INLINE void step() {
    k.step();
    v.step();
  }
};

/// The keys of a block, or their values, of one head, which are a stride apart.
template <class Stored>
struct StridedRows {
  const char* origin;
  int64_t stride, exist;  // in bytes; rows there are
  int64_t size, count;    // of a row; of rows to visit
  int64_t next;           // bytes from a row to the one that its turn comes to next, 0: not to be requested
  FetchBoth* fetch;

  /// Of so many rows visited in turn how many are sure to be adjacent keys.
  static constexpr int64_t adjacent(int64_t rows) { return rows; }
  [[nodiscard]] TILEWISE_INLINE const Stored* row(int64_t i) const {
    return reinterpret_cast<const Stored*>(origin + i * stride);
  }
  /// The same, or the last one there is.
  [[nodiscard]] TILEWISE_INLINE const Stored* row_there(int64_t i) const { return row(i < exist ? i : exist - 1); }
  /// Which one of the block's keys it is.
  [[nodiscard]] TILEWISE_INLINE static int64_t key(int64_t i) { return i; }
  TILEWISE_INLINE void step() const { fetch->step(); }
  /// Other query heads read the same rows once more.
  TILEWISE_INLINE void again() { next = 0; }

  /// What was requested and forgotten would stall for hundreds of cycles when it is read: requested
  /// once more, a head ahead, it costs less than a cycle a line.
  template <int64_t kRows>
  struct Requests {
    TILEWISE_INLINE Requests(const StridedRows&, int64_t) {}
    TILEWISE_INLINE void request(const StridedRows& rows, const Stored* row, int64_t, int64_t element) const {
      if (rows.next != 0) __builtin_prefetch(reinterpret_cast<const char*>(row + element) + rows.next, 0, 2);
    }
  };
};

/// The same of keys that lie where a table says, which has none but rows there are.
template <class Stored, int64_t kTogether>
struct PlacedRows {
  RowList now, later;   // later: those to be requested meanwhile
  int64_t size, count;  // of a row; of rows to visit

  static constexpr int64_t adjacent(int64_t rows) { return rows < kTogether ? rows : kTogether; }
  [[nodiscard]] TILEWISE_INLINE const Stored* row(int64_t i) const {
    return reinterpret_cast<const Stored*>(now.at(i));
  }
  [[nodiscard]] TILEWISE_INLINE const Stored* row_there(int64_t i) const { return row(i); }
  [[nodiscard]] TILEWISE_INLINE int64_t key(int64_t i) const { return now.order[i]; }
  TILEWISE_INLINE static void step() {}
  TILEWISE_INLINE void again() { later = now; }

  /// Into the first cache: they are read soon.
  template <int64_t kRows>
  struct Requests {
    TILEWISE_INLINE Requests(const PlacedRows& rows, int64_t i) {
#pragma GCC unroll 4
      for (int64_t c = 0; c < kRows; ++c) at_[c] = rows.later.at(i + c);
    }
    TILEWISE_INLINE void request(const PlacedRows&, const Stored*, int64_t c, int64_t element) const {
      __builtin_prefetch(at_[c] + element * int64_t{sizeof(Stored)}, 0, 3);
    }

   private:
    const char* at_[kRows];
  };
};

}  // namespace tilewise::backends::cpu
