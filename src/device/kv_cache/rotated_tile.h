// Rows of queries, rotated where they lie in a shared tile.
#pragma once

#include "device/kv_cache/rotation.h"
#include "device/tile/shared_tile.h"

namespace tilewise::device {

/// C.vector_tables: 8 pairs at a time fill two chunks of a row, and lie on 16 bytes in the tables.
template <class Ops, auto C, class Rotation, class Tile>
class RotatedTile {
  using Machine = typename Ops::Machine;
  using Angles = RotaryAngles<Rotation>;
  using Bits = ElementBits<Rotation::kElement>;
  static constexpr int kPairs = C.vector_tables ? kChunk : 1;  // of a unit
  static constexpr int kRowUnits = Tile::kCols / 2 / kPairs;   // if all of a row turns
  static constexpr int kThreads = C.waves * Machine::kLanes;
  /// Units of a lane, none of which waits for another: one after the other they take 1,000 cycles each. A lone wave has
  /// one at a time, which is all it has where it decodes: it waits for instructions that it meets for the first time.
  static constexpr int kMostUnits = ceil_div(Tile::kRows * kRowUnits, kThreads);
  /// Eight of them AMD's compiler keeps in scratch (368 bytes a lane at head_dim 256).
  static constexpr int kUnits =
      C.waves == 1 ? 1 : minimum(kMostUnits, Rotation::kFloatTables || !Ops::kAsyncCopies ? 4 : 8);
  using Run = Choose<kPairs == 1, typename Angles::Angle, typename Angles::AngleRun>;

 public:
  /// The first `rows` rows, at least 1.
  TILEWISE_INLINE RotatedTile(Tile& tile, const RotaryTables& tables, int rows)
      : tile_(tile), tables_(tables), rows_(minimum(rows, Tile::kRows)), pairs_(static_cast<int>(tables.dim / 2)) {}

  /// Row r to position_of(r). Waits for the copies that load the rows once it has asked for their first angles, and
  /// has called meanwhile().
  template <class PositionOf, class Meanwhile>
  TILEWISE_INLINE void rotate(const PositionOf& position_of, const Meanwhile& meanwhile) {
    for (int first = 0; first < rows_ * kRowUnits; first += kUnits * kThreads) {
      Unit unit[kUnits];
      Run angles[kUnits];
      TILEWISE_UNROLL
      for (int i = 0; i < kUnits; ++i) {
        if (first + i * kThreads >= rows_ * kRowUnits) break;
        unit[i] = unit_at(first + i * kThreads + Machine::thread());
        const Angles of_row(tables_, position_of(unit[i].row));
        if constexpr (kPairs == 1) {
          angles[i] = of_row.load(unit[i].pair);
        } else {
          angles[i] = of_row.load_run(unit[i].pair);
        }
      }
      if (first == 0) {
        meanwhile();
        Ops::finish_copies();
        Machine::barrier();
      }
      TILEWISE_UNROLL
      for (int i = 0; i < kUnits; ++i) {
        if (first + i * kThreads >= rows_ * kRowUnits) break;
        turn(unit[i], angles[i]);
      }
    }
  }

 private:
  struct Unit {
    int row, pair;
    bool used;  // lanes without a unit of their own ask for others' angles and change nothing
  };
  TILEWISE_INLINE Unit unit_at(int number) const {
    const int row = number / kRowUnits, pair = number % kRowUnits * kPairs;
    return {minimum(row, rows_ - 1), minimum(pair, pairs_ - kPairs), row < rows_ && pair < pairs_};
  }

  TILEWISE_INLINE void turn(const Unit& unit, const Run& angles) const {
    if (!unit.used) return;
    // Pairs lie next to each other, or in the two halves of what turns.
    constexpr int kFirstCols = Rotation::kInterleaved ? 2 : 1;
    const int offset = static_cast<int>(tables_.offset), x_col = offset + kFirstCols * unit.pair;
    const int y_col = Rotation::kInterleaved ? x_col + kPairs : x_col + static_cast<int>(tables_.dim / 2);
    Bits elements[2 * kPairs];
    load(elements, unit.row, x_col);
    load(elements + kPairs, unit.row, y_col);
    TILEWISE_UNROLL
    for (int i = 0; i < kPairs; ++i) {
      Bits& x_bits = elements[Rotation::kInterleaved ? 2 * i : i];
      Bits& y_bits = elements[Rotation::kInterleaved ? 2 * i + 1 : kPairs + i];
      const float x = Angles::widened(x_bits), y = Angles::widened(y_bits);
      const uint32_t both = Machine::template pack<Rotation::kElement>(
          turned_x(x, y, angles.cosine(i), angles.sine(i)), turned_y(x, y, angles.cosine(i), angles.sine(i)));
      x_bits = static_cast<Bits>(both), y_bits = static_cast<Bits>(both >> 16);
    }
    store(elements, unit.row, x_col);
    store(elements + kPairs, unit.row, y_col);
  }

  /// kPairs elements of a row from a column on.
  TILEWISE_INLINE void load(Bits* to, int row, int col) const {
    if constexpr (kPairs == 1) {
      *to = Machine::template load_shared<Bits>(place(row, col));
    } else {
      const auto chunk = Machine::template load_shared<Chunk>(place(row, col));
      TILEWISE_UNROLL
      for (int i = 0; i < kPairs; ++i) to[i] = chunk.element(i);
    }
  }
  TILEWISE_INLINE void store(const Bits* from, int row, int col) const {
    if constexpr (kPairs == 1) {
      Machine::store_shared(place(row, col), *from);
    } else {
      Chunk chunk;
      TILEWISE_UNROLL
      for (int i = 0; i < kPairs; i += 2) chunk.word[i / 2] = from[i] | static_cast<uint32_t>(from[i + 1]) << 16;
      Machine::store_shared(place(row, col), chunk);
    }
  }
  TILEWISE_INLINE Bits* place(int row, int col) const { return tile_.chunk(row, col / kChunk) + col % kChunk; }

  Tile& tile_;
  const RotaryTables& tables_;
  int rows_, pairs_;  // that are used; pairs of a row
};

}  // namespace tilewise::device
