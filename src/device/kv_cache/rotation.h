// Rows of queries or keys, rotated to their positions.
#pragma once

#include "device/common/mask.h"
#include "device/kv_cache/params.h"
#include "device/tile/contract.h"

namespace tilewise::device {

/// How a call rotates. kFloatTables: tables in fp32, else in kElement.
template <class Machine_, int kElement_, bool kRotates_, bool kInterleaved_, bool kFloatTables_>
struct Rotation {
  using Machine = Machine_;
  static constexpr int kElement = kElement_;
  static constexpr bool kRotates = kRotates_, kInterleaved = kInterleaved_, kFloatTables = kFloatTables_;
};

/// Of a sequence's first new key.
template <class Machine>
TILEWISE_INLINE int64_t first_position(const RotaryTables& r, const CacheShape& c, int64_t batch) {
  if (r.seqlens) return Machine::load_global(r.seqlens + batch);
  return c.cache_seqlens ? Machine::load_global(c.cache_seqlens + batch) : c.cache_seqlen;
}

/// The two elements that turn into each other, and the number of their angle.
struct RotaryPair {
  int64_t x, y, angle;
};

/// Tables at a position.
template <class Rotation>
class RotaryAngles {
  using Machine = typename Rotation::Machine;
  using Bits = ElementBits<Rotation::kElement>;

 public:
  struct Angle {
    float cosine, sine;
  };
  TILEWISE_INLINE RotaryAngles(const RotaryTables& tables, int64_t position)
      : r_(tables), position_(clamp_to(position, 0, tables.rows - 1)) {}
  TILEWISE_INLINE Angle load(int64_t i) const {
    return {entry(r_.cos, position_ * r_.cos_stride + i), entry(r_.sin, position_ * r_.sin_stride + i)};
  }
  /// Pair i of a row.
  TILEWISE_INLINE static RotaryPair pair(const RotaryTables& r, int64_t i) {
    const int64_t x = r.offset + (Rotation::kInterleaved ? 2 * i : i);
    return {x, x + (Rotation::kInterleaved ? 1 : r.dim / 2), i};
  }

  /// In float, or in double, where products and their sum are exact but for the last bits: keys, which stay, are so
  /// what the reference rounds, bit for bit.
  template <class Number>
  TILEWISE_INLINE static float turned_x(Number x, Number y, const Angle& a) {
    return static_cast<float>(x * a.cosine - y * a.sine);
  }
  template <class Number>
  TILEWISE_INLINE static float turned_y(Number x, Number y, const Angle& a) {
    return static_cast<float>(x * a.sine + y * a.cosine);
  }
  TILEWISE_INLINE static float widened(Bits bits) { return element_to_float<Rotation::kElement>(bits); }
  TILEWISE_INLINE static Bits rounded(float value) {
    return static_cast<Bits>(Machine::template pack<Rotation::kElement>(value, 0.0f));
  }

 private:
  TILEWISE_INLINE static float entry(const void* table, int64_t at) {
    if constexpr (Rotation::kFloatTables) return Machine::load_global(static_cast<const float*>(table) + at);
    return widened(Machine::load_global(static_cast<const Bits*>(table) + at));
  }
  const RotaryTables& r_;
  int64_t position_;
};

/// A row's elements, rotated to its position where its tensor is.
template <class Rotation>
class RotatedRow {
  using Machine = typename Rotation::Machine;
  using Angles = RotaryAngles<Rotation>;
  using Bits = ElementBits<Rotation::kElement>;

 public:
  TILEWISE_INLINE RotatedRow(const RotaryTables& tables, const Bits* row, bool rotated, int64_t position)
      : r_(tables), row_(row), rotated_(Rotation::kRotates && rotated), angles_(tables, rotated_ ? position : 0) {}
  TILEWISE_INLINE float value(int64_t d) const {
    if (!is_rotated(d)) return Angles::widened(bits(d));
    const int64_t at = d - r_.offset, half = r_.dim / 2;
    const bool second = Rotation::kInterleaved ? at % 2 != 0 : at >= half;
    const RotaryPair pair = Angles::pair(r_, Rotation::kInterleaved ? at / 2 : second ? at - half : at);
    const double x = Angles::widened(bits(pair.x)), y = Angles::widened(bits(pair.y));
    const auto angle = angles_.load(pair.angle);
    return second ? Angles::turned_y(x, y, angle) : Angles::turned_x(x, y, angle);
  }
  /// In the row's own type.
  TILEWISE_INLINE Bits rounded(int64_t d) const { return is_rotated(d) ? Angles::rounded(value(d)) : bits(d); }

 private:
  TILEWISE_INLINE bool is_rotated(int64_t d) const { return rotated_ && d >= r_.offset && d < r_.offset + r_.dim; }
  TILEWISE_INLINE Bits bits(int64_t d) const { return Machine::load_global(row_ + d); }

  const RotaryTables& r_;
  const Bits* row_;
  bool rotated_;
  Angles angles_;
};

/// Rotates rows that lie in a tile. A wave turns pairs of some rows at a time, none of which waits for another: one
/// after the other they take 150 cycles each.
template <class Ops, auto C, class Rotation, class Tile>
class RowsInTile {
  using Machine = typename Ops::Machine;
  using Angles = RotaryAngles<Rotation>;
  using Bits = ElementBits<Rotation::kElement>;
  static constexpr int kRows = 4, kPairs = 2;  // at a time: 4 query heads of 128 dims in one go

 public:
  /// The first `rows` rows, at least 1.
  TILEWISE_INLINE RowsInTile(Tile& tile, const RotaryTables& tables, int rows)
      : tile_(tile), tables_(tables), pairs_(static_cast<int>(tables.dim / 2)) {
    last_row_ = minimum(rows, Tile::kRows) - 1;
  }

  /// Row r to position_of(r). Waits for the copies that bring the rows once it has asked for their first angles.
  template <class PositionOf>
  TILEWISE_INLINE void rotate(const PositionOf& position_of) {
    bool there = false;
    for (int batch = 0; batch <= last_row_ / (kRows * C.waves); ++batch) {
      first_row_ = (batch * C.waves + Machine::wave()) * kRows;
      for (first_pair_ = 0; first_pair_ < pairs_; first_pair_ += kPairs * Machine::kLanes) {
        TILEWISE_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const Angles of_row(tables_, position_of(row(r)));
          TILEWISE_UNROLL
          for (int i = 0; i < kPairs; ++i) angle_[r][i] = of_row.load(minimum(pair(i), pairs_ - 1));
        }
        if (!there) {
          Ops::finish_copies();
          Machine::barrier();
          there = true;
        }
        turn();
      }
    }
  }

 private:
  TILEWISE_INLINE int row(int r) const { return minimum(first_row_ + r, last_row_); }
  TILEWISE_INLINE int pair(int i) const { return first_pair_ + i * Machine::kLanes + Machine::lane(); }
  TILEWISE_INLINE bool is_used(int r, int i) const { return first_row_ + r <= last_row_ && pair(i) < pairs_; }
  TILEWISE_INLINE Bits* place(int r, int64_t col) const {
    return tile_.chunk(row(r), static_cast<int>(col) / kChunk) + static_cast<int>(col) % kChunk;
  }
  TILEWISE_INLINE float load(int r, int i, int64_t col) const {
    return is_used(r, i) ? Angles::widened(Machine::template load_shared<Bits>(place(r, col))) : 0.0f;
  }

  TILEWISE_INLINE void turn() {
    float x[kRows][kPairs], y[kRows][kPairs];
    TILEWISE_UNROLL
    for (int i = 0; i < kPairs; ++i) {
      const RotaryPair at = Angles::pair(tables_, minimum(pair(i), pairs_ - 1));
      TILEWISE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        x[r][i] = load(r, i, at.x);
        y[r][i] = load(r, i, at.y);
      }
    }
    TILEWISE_UNROLL
    for (int i = 0; i < kPairs; ++i) {
      const RotaryPair at = Angles::pair(tables_, minimum(pair(i), pairs_ - 1));
      TILEWISE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const Bits new_x = Angles::rounded(Angles::turned_x(x[r][i], y[r][i], angle_[r][i]));
        const Bits new_y = Angles::rounded(Angles::turned_y(x[r][i], y[r][i], angle_[r][i]));
        if (!is_used(r, i)) continue;
        Machine::store_shared(place(r, at.x), new_x);
        Machine::store_shared(place(r, at.y), new_y);
      }
    }
  }

  Tile& tile_;
  const RotaryTables& tables_;
  int pairs_, last_row_, first_row_ = 0, first_pair_ = 0;
  typename Angles::Angle angle_[kRows][kPairs];
};

}  // namespace tilewise::device
