// A stream tile as the runs that lanes load into it through registers: which lane has which run, and how a run gets to
// the tile's copies.
#pragma once

#include "device/tile/stream_tile.h"

namespace tilewise::device {

/// A run of elements of one row that a lane moves at once.
template <int kElements>
struct RunOf {
  using Type = Chunk;
};
template <>
struct RunOf<4> {
  using Type = HalfChunk;
};

/// Each lane has up to kSteps blocks of kBlockRows runs, one below the other.
template <class Ops, auto C, class Tile>
struct TileRuns {
  using Machine = typename Ops::Machine;
  static constexpr int kThreads = C.waves * Machine::kLanes;
  static constexpr int kBlockRows = Tile::kHasColumns ? 4 : 1;  // blocks of 4 rows, to transpose them
  // Shorter runs where longer ones would leave lanes idle.
  static constexpr int kRun = Tile::kHasColumns && Tile::kRows * Tile::kDepth / (4 * kChunk) < kThreads ? 4 : kChunk;
  using Run = typename RunOf<kRun>::Type;
  static constexpr int kRowRuns = Tile::kDepth / kRun;
  static constexpr int kUnits = Tile::kRows / kBlockRows * kRowRuns;
  static constexpr int kSteps = ceil_div(kUnits, kThreads);
  /// Every lane keeps its columns and moves down by whole rows from step to step.
  static constexpr bool kEvenSteps = kThreads % kRowRuns == 0 && (kThreads / kRowRuns & (kThreads / kRowRuns - 1)) == 0;
  static constexpr int kRowsAStep = kEvenSteps ? kThreads / kRowRuns * kBlockRows : Tile::kRows;

  struct Block {
    Run row[kBlockRows];
  };

  /// visit(step, all_row, row, col) for each block of rows: its first row is all_row + row, of which
  /// every lane has the same all_row.
  template <class Visit>
  TILEWISE_INLINE static void for_each_block(int thread, const Visit& visit) {
    TILEWISE_UNROLL
    for (int step = 0; step < kSteps; ++step) visit_block(step, thread, visit);
  }
  template <class Visit>
  TILEWISE_INLINE static void visit_block(int step, int thread, const Visit& visit) {
    if (has_block(step, thread)) visit_place(step, thread, visit);
  }
  /// A last step may have fewer blocks than there are threads.
  TILEWISE_INLINE static bool has_block(int step, int thread) {
    return kUnits % kThreads == 0 || thread + step * kThreads < kUnits;
  }
  /// Whether it has that block or not: then it lies past the tile's rows.
  template <class Visit>
  TILEWISE_INLINE static void visit_place(int step, int thread, const Visit& visit) {
    const Unit place = unit_of(kEvenSteps ? thread : thread + step * kThreads);
    visit(step, kEvenSteps ? step * kRowsAStep : 0, place.block * kBlockRows, place.run * kRun);
  }

  TILEWISE_INLINE static void store(Tile& tile, const Block& block, int all_row, int row, int col) {
    TILEWISE_UNROLL
    for (int part = 0; part < kStoreParts; ++part) store_part(part, tile, block, all_row, row, col);
  }

  /// A row to the rows, or a pair of columns to the columns.
  static constexpr int kRowParts = Tile::kHasRows ? kBlockRows : 0;
  static constexpr int kStoreParts = kRowParts + (Tile::kHasColumns ? kRun / 2 : 0);
  TILEWISE_INLINE static void store_part(int part, Tile& tile, const Block& block, int all_row, int row, int col) {
    if constexpr (Tile::kHasRows) {
      if (part < kRowParts) {
        Machine::store_shared(tile.rows.chunk(all_row + part, row, 0, col / kChunk) + col % kChunk, block.row[part]);
      }
    }
    if constexpr (Tile::kHasColumns) {
      if (part >= kRowParts) store_two_columns(tile, block, part - kRowParts, all_row + row, col);
    }
  }

 private:
  /// Which block of rows, and which run of columns in it.
  struct Unit {
    int block, run;
  };
  /// Sixteen lanes copy neighbouring runs. Of blocks to transpose the next sixteen copy the one whose
  /// columns fill the same chunks: the two halves of a chunk lie in different banks.
  TILEWISE_INLINE static constexpr Unit unit_of(int unit) {
    if constexpr (kBlockRows == 1 || kRowRuns % 16 != 0 || (kEvenSteps && kThreads / kRowRuns % 4 != 0)) {
      return {unit / kRowRuns, unit % kRowRuns};
    } else {
      constexpr int kSixteens = kRowRuns / 16;
      const int mate = unit / 16 % 2, rest = unit / 32, pair = rest / kSixteens;
      const int first = Ops::kChunkMates == 2 ? pair / 2 * 4 + pair % 2 : 2 * pair;
      return {first + Ops::kChunkMates * mate, unit % 16 + rest % kSixteens * 16};
    }
  }

  /// A block of 4 rows leaves as rows of 4 elements, one a column: two rows' elements pair up in a word.
  TILEWISE_INLINE static void store_two_columns(Tile& tile, const Block& block, int pair, int row, int col) {
    const uint32_t w0 = block.row[0].word[pair], w1 = block.row[1].word[pair];
    const uint32_t w2 = block.row[2].word[pair], w3 = block.row[3].word[pair];
    const HalfChunk even{{Machine::low_halves(w0, w1), Machine::low_halves(w2, w3)}};
    const HalfChunk odd{{Machine::high_halves(w0, w1), Machine::high_halves(w2, w3)}};
    Machine::store_shared(Ops::transposed_place(tile.columns, col + 2 * pair, row), even);
    Machine::store_shared(Ops::transposed_place(tile.columns, col + 2 * pair + 1, row), odd);
  }
};

}  // namespace tilewise::device
