// Products whose sides are swapped, of elements of 16 bits: weights are M, 128 rows a block, and rows of an expert are
// N, as many as it has in steps of 16 or so, so that groups of any size waste little. Blocks of a cluster have weights
// of their own and load rows for each other. Sums leave through shared memory, where a warp that multiplies nothing
// takes them up.
#pragma once

#include "device/sm90/grouped_rows.h"
#include "device/sm90/load.h"
#include "device/sm90/mma.h"
#include "device/sm90/ops.h"
#include "device/sm90/pipeline.h"

namespace tilewise::device {

struct SwappedShape {
  int32_t type;     // of both operands
  int32_t block_n;  // most rows of an expert in a tile, a multiple of 64
  int32_t stages;
  int32_t cluster;               // blocks that load rows for each other
  int32_t column_step;           // columns of a tile are a multiple of it, and it is one of 8 * cluster
  int32_t weights_mn_major = 0;  // 1: weights are [k, n], not [n, k]
};

/// Where sums go, rounded to 16 bits: a matrix with contiguous rows that start on 16 bytes, and a map of it.
struct StoredRows {
  const TensorMap& map;  // of boxes of kStoredBoxRows
  uint16_t* data;
  int64_t row_stride;
  int32_t columns;
};

template <class Ops, SwappedShape S>
class SwappedProduct {
  using Machine = typename Ops::Machine;

 public:
  static constexpr int kDepth = 64, kBlockM = 128, kConsumers = 2, kStoredBoxRows = 16;
  static constexpr bool kMnMajor = S.weights_mn_major != 0;
  struct Stage {
    SwizzledTile<kMnMajor ? kDepth : kBlockM, kMnMajor ? kBlockM : kDepth> weights;
    SwizzledTile<S.block_n, kDepth> rows;
  };
  using Pipe = Pipeline<Machine, S.stages, S.cluster>;
  using Sums = Fragment<Ops, 16, S.block_n>;
  /// What a warpgroup leaves to be stored: its 64 columns of half of the rows.
  static constexpr int kStoredRows = S.block_n / 2;
  using Stored = SwizzledTile<kStoredRows, 64>;
  using StoredRing = Ring<Machine, 1>;  // between a warpgroup and the warp that stores for it

  /// Loads a block's weights of a stage, as their map has them.
  TILEWISE_INLINE static void load_weights(Stage& stage, Barrier<Machine>& full, const TensorMap& map, int32_t row,
                                           int32_t k, int32_t expert) {
    load_tile(stage.weights, map, full, kMnMajor ? row : k, kMnMajor ? k : row, expert);
  }

  /// Rows that are loaded and multiplied of a group of `count`.
  TILEWISE_INLINE static int32_t columns_of(int32_t count) { return ceil_div(count, S.column_step) * S.column_step; }
  /// How often what waits to be stored is filled for them.
  TILEWISE_INLINE static int32_t turns_of(int32_t count) { return count > kStoredRows ? 2 : 1; }

  /// Loads a block's share of a stage's rows for all blocks of the cluster. map_of(i): of boxes of kMostBoxRows >> i.
  template <class MapOf>
  TILEWISE_INLINE static void load_rows(Stage& stage, Barrier<Machine>& full, const MapOf& map_of,
                                        const ExpertGroup& group, int32_t rank, int32_t k) {
    const int32_t share = columns_of(group.count) / S.cluster, end = (rank + 1) * share;
    int32_t first = rank * share;
    TILEWISE_UNROLL
    for (int box = 0; box < kRowBoxes; ++box) {
      const int32_t rows = kMostBoxRows >> box;
      for (; first + rows <= end; first += rows) {
        load_box<S.cluster>(stage.rows.bytes + first * kChunkRowBytes, map_of(box), full, k, group.first + first);
      }
    }
  }
  static constexpr int32_t kWeightBytes = sizeof(Stage::weights);
  TILEWISE_INLINE static int32_t row_bytes_of(const ExpertGroup& group) {
    return columns_of(group.count) * kChunkRowBytes;
  }

  /// sums = W X^T of a warpgroup's 64 rows of weights, in the first columns of all that there is room for.
  TILEWISE_INLINE static void multiply(Sums& sums, ConsumerPlace<Pipe>& place, Stage (&stages)[S.stages],
                                       int32_t warpgroup, int32_t steps, int32_t count) {
    multiply_columns<S.column_step>(sums, place, stages, warpgroup * 64, steps, count);
  }

  /// Leaves sums as rows of 64 columns, half of the rows at a time. pair_of(c, slot): two adjacent rows, 8 c and
  /// 8 c + 1 and the lane's own further, of the lane's first or second column, in 16 bits each.
  template <class PairOf>
  TILEWISE_INLINE static void leave(int32_t count, Stored& stored, StoredRing& ring, RingPlace<1>& place,
                                    const PairOf& pair_of) {
    const int lane = Machine::lane(), piece = 2 * (Machine::wave() % 4) + lane / 8 % 2;
    TILEWISE_UNROLL
    for (int turn = 0; turn < 2; ++turn) {
      if (turn == 1 && turns_of(count) == 1) break;
      place.wait_empty(ring);
      TILEWISE_UNROLL
      for (int c = turn * kStoredRows / 8; c < (turn + 1) * kStoredRows / 8; c += 2) {
        if (8 * c >= count) break;
        uint32_t packed[4];
        TILEWISE_UNROLL
        for (int m = 0; m < 4; ++m) packed[m] = pair_of(c + m / 2, m % 2);
        const int row = 8 * c + lane / 16 * 8 + lane % 8 - turn * kStoredRows;
        Machine::store_matrices_transposed(stored.piece(row, piece), packed);
      }
      announce(ring, place);
    }
  }
  /// Tells the warp that stores.
  TILEWISE_INLINE static void announce(StoredRing& ring, RingPlace<1>& place) {
    Machine::fence_shared_writes();
    arrive_as_warp(ring.full[0]);
    place.advance();
  }

  /// Stores the group's rows from `first` on, from column `col` on, as a warp. Whole boxes by TMA, since rows behind
  /// the group's are another's, and the others row by row.
  template <class From>
  TILEWISE_INLINE static void store_rows(From& from, const ExpertGroup& group, const StoredRows& to, int32_t first,
                                         int32_t col) {
    const int32_t rows = minimum(group.count - first, From::kRows), to_row = group.first + first;
    const int32_t whole = rows / kStoredBoxRows * kStoredBoxRows;
    if (Machine::lane() == 0) {
      for (int32_t i = 0; i < whole; i += kStoredBoxRows) {
        Machine::store_box(to.map, from.bytes + i * From::kRowBytes, col, to_row + i);
      }
    }
    Machine::wave_sync();
    constexpr int kPieces = From::kRowPieces;
    const int32_t piece = Machine::lane() % kPieces, at = col + 8 * piece;
    const bool there = at < to.columns;
    for (int32_t i = whole + Machine::lane() / kPieces; i < rows; i += 32 / kPieces) {
      const Chunk chunk = Machine::template load_shared<Chunk>(from.piece(i, piece));
      uint16_t* const row = to.data + (to_row + i) * to.row_stride;
      if (there) Machine::store_global(reinterpret_cast<Chunk*>(row + at), chunk);
    }
    Machine::wave_sync();
  }

  /// store(turn) for each time that a warpgroup fills what is to be stored, which is free again behind it.
  template <class Store>
  TILEWISE_INLINE static void take_turns(int32_t turns, StoredRing& ring, RingPlace<1>& place, const Store& store) {
    for (int32_t turn = 0; turn < turns; ++turn, place.advance()) {
      place.wait_full(ring);
      store(turn);
      if (Machine::lane() == 0) Machine::commit_stores(), Machine::wait_stores_read();
      arrive_as_warp(ring.empty[0]);
    }
  }

 private:
  /// Of as many columns as the group has at most.
  template <int kColumns>
  TILEWISE_INLINE static void multiply_columns(Sums& all, ConsumerPlace<Pipe>& place, Stage (&stages)[S.stages],
                                               int32_t first_row, int32_t steps, int32_t count) {
    if constexpr (kColumns < S.block_n) {
      if (count > kColumns) {
        return multiply_columns<kColumns + S.column_step>(all, place, stages, first_row, steps, count);
      }
    }
    auto& sums = reinterpret_cast<Fragment<Ops, 16, kColumns>&>(all);
    pin_registers<Machine>(sums);
    TILEWISE_NO_UNROLL
    for (int32_t step = 0; step < steps; ++step, place.advance()) {
      place.wait();
      Stage& stage = stages[place.stage()];
      auto& rows = reinterpret_cast<SwizzledTile<kColumns, kDepth>&>(stage.rows);
      Machine::wgmma_fence();
      if constexpr (kMnMajor) {
        mma_AtBt<Machine, S.type>(sums.tile[0], stage.weights, first_row, rows, step > 0);
      } else {
        mma_ABt<Machine, S.type>(sums.tile[0], stage.weights, first_row, rows, step > 0);
      }
      Machine::wgmma_commit();
      Machine::template wgmma_wait<1>();
      if (step > 0) place.release_before();
    }
    Machine::template wgmma_wait<0>();
    pin_registers<Machine>(sums);
    place.release_before();
  }
};

}  // namespace tilewise::device
