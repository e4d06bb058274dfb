// Bringing rows of a tensor into shared tiles: asynchronously where the machine can, else through
// registers. Rows past the end repeat the last one (they lie in the used part, and their weights are
// zero); columns past head_dim are zeros. No lane reads outside the tensor.
#pragma once

#include "device/common/kernel_config.h"
#include "device/portable/stream_tile.h"

namespace tilewise::device {

/// Rows of one head in global memory.
struct RowSource {
  const uint16_t* data;  // row 0
  int64_t stride;        // between rows, in elements
  int32_t rows;          // at least 1 where anything is loaded
  int32_t cols;          // head_dim
};

/// 8 elements of a row from `col` on, zeros past `cols`.
template <class Machine, KernelConfig C>
TILEWISE_INLINE Chunk load_chunk(const uint16_t* row, int col, int cols) {
  Chunk chunk{{0, 0, 0, 0}};
  if constexpr (C.vector_rows) {
    if (C.exact_dims || col < cols) chunk = Machine::load_global(reinterpret_cast<const Chunk*>(row + col));
  } else {
    TILEWISE_UNROLL
    for (int i = 0; i < kChunk; ++i) {
      const uint32_t element = col + i < cols ? Machine::load_global(row + col + i) : uint16_t{0};
      chunk.word[i / 2] |= element << (16 * (i % 2));
    }
  }
  return chunk;
}

/// Copies a chunk to shared memory now, or starts to.
template <class Ops, KernelConfig C>
TILEWISE_INLINE void copy_chunk(uint16_t* to, const uint16_t* row, int col, int cols) {
  using Machine = typename Ops::Machine;
  if constexpr (Ops::kAsyncCopies && C.vector_rows) {
    const bool valid = C.exact_dims || col < cols;
    Machine::copy_async(to, valid ? row + col : row, valid);
  } else {
    Machine::store_shared(to, load_chunk<Machine, C>(row, col, cols));
  }
}

/// Streams tiles of a tensor: start() for the next one while the current one is computed on,
/// finish() once its place is free; then a barrier.
template <class Ops, KernelConfig C, class Tile>
class TileLoader {
  using Machine = typename Ops::Machine;
  static constexpr int kThreads = C.waves * Machine::kLanes;
  static constexpr int kRowChunks = Tile::kDepth / kChunk;
  static constexpr bool kBlocks = Tile::kHasColumns;  // work in blocks of 4 rows, to transpose them
  static constexpr int kBlockRows = kBlocks ? 4 : 1;
  static constexpr int kUnits = Tile::kCols / kBlockRows * kRowChunks;
  static constexpr int kSteps = ceil_div(kUnits, kThreads);

 public:
  TILEWISE_INLINE void start(Tile& tile, const RowSource& source, int first_row) {
    for_each_chunk([&](int step, int part, int row, int chunk) {
      const int64_t from = minimum(first_row + row, source.rows - 1);
      const uint16_t* address = source.data + from * source.stride;
      if constexpr (Ops::kAsyncCopies) {
        copy_chunk<Ops, C>(tile.rows.chunk(row, chunk), address, chunk * kChunk, source.cols);
      } else {
        held_[step][part] = load_chunk<Machine, C>(address, chunk * kChunk, source.cols);
      }
    });
    if constexpr (Ops::kAsyncCopies) Machine::commit_copies();
  }

  TILEWISE_INLINE void finish(Tile& tile) {
    if constexpr (!Ops::kAsyncCopies) {
      if constexpr (Tile::kHasRows) {
        for_each_chunk([&](int step, int part, int row, int chunk) {
          Machine::store_shared(tile.rows.chunk(row, chunk), held_[step][part]);
        });
      }
      if constexpr (Tile::kHasColumns) store_columns(tile);
    }
  }

 private:
  template <class Visit>
  TILEWISE_INLINE static void for_each_unit(const Visit& visit) {
    const int thread = Machine::thread();
    TILEWISE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const int unit = thread + step * kThreads;
      if (kUnits % kThreads == 0 || unit < kUnits) visit(step, unit / kRowChunks * kBlockRows, unit % kRowChunks);
    }
  }

  template <class Visit>
  TILEWISE_INLINE static void for_each_chunk(const Visit& visit) {
    for_each_unit([&](int step, int row, int chunk) {
      TILEWISE_UNROLL
      for (int part = 0; part < kBlockRows; ++part) visit(step, part, row + part, chunk);
    });
  }

  /// A block of 4 rows x 8 columns leaves as 8 rows of 4: two rows' elements pair up in a word.
  TILEWISE_INLINE void store_columns(Tile& tile) {
    for_each_unit([&](int step, int row, int chunk) {
      TILEWISE_UNROLL
      for (int pair = 0; pair < kChunk / 2; ++pair) {
        const uint32_t w0 = held_[step][0].word[pair], w1 = held_[step][1].word[pair];
        const uint32_t w2 = held_[step][2].word[pair], w3 = held_[step][3].word[pair];
        const HalfChunk even{{Machine::low_halves(w0, w1), Machine::low_halves(w2, w3)}};
        const HalfChunk odd{{Machine::high_halves(w0, w1), Machine::high_halves(w2, w3)}};
        const int depth = chunk * kChunk + 2 * pair;
        Machine::store_shared(Ops::transposed_place(tile.columns, depth, row), even);
        Machine::store_shared(Ops::transposed_place(tile.columns, depth + 1, row), odd);
      }
    });
  }

  Chunk held_[Ops::kAsyncCopies ? 1 : kSteps][kBlockRows];
};

}  // namespace tilewise::device
