// Loading rows of a tensor into shared tiles: asynchronously where the machine can, else through
// registers. Rows past the end repeat the last one, and whoever computes with
// them leaves them out; columns past the used ones are zeros. No lane reads outside the tensor.
#pragma once

#include "device/tile/tile_runs.h"

namespace tilewise::device {

/// Rows in global memory of ElementType `Element`.
template <int Element>
struct RowSource {
  static constexpr int kElement = Element;
  using Bits = ElementBits<Element>;
  const Bits* data;  // row 0
  int64_t stride;    // between rows, in elements
  int32_t rows;      // at least 1 where anything is loaded
  int32_t cols;      // used elements of a row
};

/// 8 elements of a row from `col` on, zeros past `cols`.
template <class Machine, auto C>
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

/// Copies a chunk to shared memory now, or starts to; zeros where it is not `there`.
template <class Ops, auto C>
TILEWISE_INLINE void copy_chunk(uint16_t* to, const uint16_t* row, int col, int cols, bool there = true) {
  using Machine = typename Ops::Machine;
  if constexpr (Ops::kAsyncCopies && C.vector_rows) {
    const bool valid = there && (C.exact_dims || col < cols);
    Machine::copy_async(to, valid ? row + col : row, valid);
  } else {
    Machine::store_shared(to, there ? load_chunk<Machine, C>(row, col, cols) : Chunk{{0, 0, 0, 0}});
  }
}

/// Copies row r of a tile's first `rows` from address(r), each row's columns past `cols` zeros, or starts to. The other
/// rows are zeros, which cost a store for each chunk and no address.
template <class Ops, auto C, class Tile, class Address>
TILEWISE_INLINE void copy_rows(Tile& tile, int64_t cols, const Address& address, int rows = Tile::kRows) {
  using Machine = typename Ops::Machine;
  constexpr int kThreads = C.waves * Machine::kLanes, kRowChunks = Tile::kCols / kChunk;
  for (int unit = Machine::thread(); unit < rows * kRowChunks; unit += kThreads) {
    const int row = unit / kRowChunks, chunk = unit % kRowChunks;
    copy_chunk<Ops, C>(tile.chunk(row, chunk), address(row), chunk * kChunk, static_cast<int>(cols));
  }
  TILEWISE_NO_UNROLL
  for (int unit = rows * kRowChunks + Machine::thread(); unit < Tile::kRows * kRowChunks; unit += kThreads) {
    Machine::store_shared(reinterpret_cast<Chunk*>(tile.data) + unit, Chunk{});
  }
}

/// Streams tiles of a tensor: start() for the next one while the current one is computed on,
/// finish() once its place is free; then a barrier. kTight: registers are few.
template <class Ops, auto C, class Tile, bool kTight = false, bool kAsync = Ops::kAsyncCopies>
class TileLoader {
  using Machine = typename Ops::Machine;
  using Source = RowSource<Tile::kElement>;
  static constexpr int kThreads = C.waves * Machine::kLanes;
  static constexpr int kRowChunks = Tile::kDepth / kChunk;
  static constexpr int kUnits = Tile::kRows * kRowChunks;

 public:
  TILEWISE_INLINE void start(Tile& tile, const Source& source, int first_row) {
    if (kEvenSteps && first_row + Tile::kRows <= source.rows) {
      start_inside(tile, source, first_row);
    } else {
      start_clamped(tile, source, first_row);
    }
    Machine::commit_copies();
  }
  TILEWISE_INLINE void finish(Tile&) {}

 private:
  static constexpr int kSteps = ceil_div(kUnits, kThreads);
  /// Every lane keeps its columns and moves down by whole rows from step to step.
  static constexpr bool kEvenSteps =
      kUnits % kThreads == 0 && kThreads % kRowChunks == 0 && (kRowChunks & (kRowChunks - 1)) == 0;

  /// One 64-bit addition a chunk: a fifth of the other work for rows of 128 elements otherwise.
  TILEWISE_INLINE static void start_inside(Tile& tile, const Source& source, int first_row) {
    constexpr int kRowsAStep = kThreads / kRowChunks;
    // Unsigned, so that quotient and remainder are a shift and a mask.
    const auto thread = static_cast<uint32_t>(Machine::not_hoisted(Machine::thread()));
    const auto row = static_cast<int>(thread / kRowChunks), chunk = static_cast<int>(thread % kRowChunks);
    const int64_t step_stride = kRowsAStep * source.stride;
    const auto* from = source.data + (first_row + row) * source.stride;
    TILEWISE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      copy_chunk<Ops, C>(tile.rows.chunk(step * kRowsAStep, row, 0, chunk), from, chunk * kChunk, source.cols);
      from += step_stride;
    }
  }

  TILEWISE_INLINE static void start_clamped(Tile& tile, const Source& source, int first_row) {
    const int thread = Machine::not_hoisted(Machine::thread());
    TILEWISE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const int unit = thread + step * kThreads, row = unit / kRowChunks, chunk = unit % kRowChunks;
      if (kUnits % kThreads != 0 && unit >= kUnits) break;
      const int64_t from = minimum(first_row + row, source.rows - 1);
      copy_chunk<Ops, C>(tile.rows.chunk(row, chunk), source.data + from * source.stride, chunk * kChunk, source.cols);
    }
  }
};

/// What loads tiles through registers, from the machine's windows: rows past the end are zeros.
template <class Ops, auto C, class Tile>
struct TileWindows {
  using Machine = typename Ops::Machine;
  using Window = typename Machine::Window;
  using Source = RowSource<Tile::kElement>;
  using Runs = TileRuns<Ops, C, Tile>;
  using Run = typename Runs::Run;
  using Block = typename Runs::Block;

  /// Whether a tile lies within 1 GB.
  TILEWISE_INLINE static bool is_near(const Source& source) {
    return static_cast<uint64_t>(source.stride) < (uint64_t{1} << 29) / Tile::kRows;
  }
  TILEWISE_INLINE static const uint8_t* start_of(const Source& source, int first_row) {
    return reinterpret_cast<const uint8_t*>(source.data + first_row * source.stride);
  }
  /// From a row to the end of the last one, as far as a window reaches; nothing of rows that are far.
  TILEWISE_INLINE static int32_t bytes_from(const Source& source, int first_row) {
    constexpr uint32_t kMost = 0x7FFFFFF0u;
    if (!is_near(source)) return 0;
    const int64_t left = 2 * ((source.rows - 1 - first_row) * source.stride + source.cols);
    const auto all = static_cast<uint64_t>(maximum(left, int64_t{0}));
    return static_cast<int32_t>(all >> 31 ? kMost : static_cast<uint32_t>(all));
  }
  TILEWISE_INLINE static Window window_from(const Source& source, int first_row) {
    return Machine::window(start_of(source, first_row), static_cast<uint32_t>(bytes_from(source, first_row)));
  }

  /// Of a column in a row at an offset; nowhere past the used ones.
  TILEWISE_INLINE static uint32_t place(uint32_t offset, int col, int cols) {
    constexpr uint32_t kNowhere = 1u << 31;
    const uint32_t inside = offset + 2 * static_cast<uint32_t>(col);
    return C.exact_dims || col < cols ? inside : kNowhere;
  }

  /// The same, where scalar registers are spared without a comparison: eight of them a run, kept for a loop, are as
  /// many.
  TILEWISE_INLINE static uint32_t place_of_element(uint32_t offset, int col, int cols) {
    if constexpr (!kSparesScalars<Machine>) return place(offset, col, cols);
    constexpr uint32_t kNowhere = 1u << 31;
    return (offset + 2 * static_cast<uint32_t>(col)) | (static_cast<uint32_t>(cols - 1 - col) & kNowhere);
  }

  /// All lanes `further` on, as load_window().
  TILEWISE_INLINE static Run load_run(const Window& window, uint32_t offset, int col, int cols, uint32_t further) {
    if constexpr (C.vector_rows) {
      return Machine::template load_window<Run>(window, place(offset, col, cols), further);
    } else {
      Run run{};
      TILEWISE_UNROLL
      for (int i = 0; i < Runs::kRun; ++i) {
        const uint32_t element =
            Machine::template load_window<uint16_t>(window, place_of_element(offset, col + i, cols), further);
        run.word[i / 2] |= element << (16 * (i % 2));
      }
      return run;
    }
  }

  /// Of a tile that is far nothing was loaded. It is copied once its place is free, with a window for each row, which
  /// the lanes of that row read: slow, but it costs other tiles no register.
  TILEWISE_INLINE static void copy_far(Tile& tile, const Source& source, int first_row) {
    TILEWISE_NO_UNROLL
    for (int this_row = 0; this_row < Runs::kRowsAStep; this_row += Runs::kBlockRows) {
      Runs::for_each_block(Machine::not_hoisted(Machine::thread()), [&](int, int all_row, int row, int col) {
        if (row != this_row) return;
        Block block;
        TILEWISE_UNROLL
        for (int part = 0; part < Runs::kBlockRows; ++part) {
          const int from = first_row + all_row + part + this_row;
          const int cols = from < source.rows ? source.cols : 0;
          const auto window = Machine::window(source.data + from * source.stride, 2 * static_cast<uint32_t>(cols));
          block.row[part] = load_run(window, 0, col, source.cols, 0);
        }
        Runs::store(tile, block, all_row, row, col);
      });
    }
  }
};

/// Through registers, one tile after the other of any source.
template <class Ops, auto C, class Tile, bool kTight>
class TileLoader<Ops, C, Tile, kTight, false> {
  using Machine = typename Ops::Machine;
  using Windows = TileWindows<Ops, C, Tile>;
  using Source = typename Windows::Source;
  using Runs = typename Windows::Runs;
  using Run = typename Runs::Run;
  using Block = typename Runs::Block;
  static constexpr int kBlockRows = Runs::kBlockRows, kSteps = Runs::kSteps;
  /// Where registers are few, addresses are worked out for each tile, and one that would fill 16 of
  /// them and more is not asked for ahead of time.
  static constexpr bool kAtOnce = kTight && kSteps * kBlockRows * sizeof(Run) > Ops::kMostHeldBytes;
  static constexpr int kStepsAtOnce = 64 / (kBlockRows * static_cast<int>(sizeof(Run)));

 public:
  TILEWISE_INLINE void start(Tile&, const Source& source, int first_row) {
    source_ = source;
    first_row_ = first_row;
    if constexpr (!kAtOnce) {
      const NearTile near_tile = near();
      Runs::for_each_block(Machine::thread(), [&](int step, int all_row, int row, int col) {
        // Elements that come one by one are loads enough: windows of rows that are asked for together take four scalar
        // registers each.
        if constexpr (!C.vector_rows && kSparesScalars<Machine>) keep_order<Machine>();
        held_[step] = load_block(near_tile, all_row, row, col);
      });
    }
  }

  TILEWISE_INLINE void finish(Tile& tile) {
    const NearTile near_tile = near();
    const int thread = kTight ? Machine::not_hoisted(Machine::thread()) : Machine::thread();
    Runs::for_each_block(thread, [&](int step, int all_row, int row, int col) {
      if constexpr (kAtOnce) {
        if (step % kStepsAtOnce == 0) keep_order<Machine>();
        Runs::store(tile, load_block(near_tile, all_row, row, col), all_row, row, col);
      } else {
        Runs::store(tile, held_[step], all_row, row, col);
      }
    });
    if (!Windows::is_near(source_)) Windows::copy_far(tile, source_, first_row_);
  }

 private:
  /// Where a tile starts, and the bytes from there to the end of the last row.
  struct NearTile {
    const uint8_t* start;
    uint32_t stride;
    int32_t bytes;
  };

  /// Nothing of a tile that is far.
  TILEWISE_INLINE NearTile near() const {
    const uint8_t* start = Windows::start_of(source_, first_row_);
    if (!Windows::is_near(source_)) return {start, 0, 0};
    return {start, static_cast<uint32_t>(source_.stride), Windows::bytes_from(source_, first_row_)};
  }

  /// A window for each row that lanes have in common, ending with the last row: a lane's offset is the
  /// same in all of them and for every tile.
  TILEWISE_INLINE Block load_block(const NearTile& tile, int all_row, int row, int col) const {
    Block block;
    TILEWISE_UNROLL
    for (int part = 0; part < kBlockRows; ++part) {
      const uint32_t skip = 2 * static_cast<uint32_t>(all_row + part) * tile.stride;
      const int32_t left = maximum(tile.bytes - static_cast<int32_t>(skip), 0);
      const auto window = Machine::window(tile.start + skip, static_cast<uint32_t>(left));
      block.row[part] = Windows::load_run(window, 2 * static_cast<uint32_t>(row) * tile.stride, col, source_.cols, 0);
    }
    return block;
  }

  Source source_;
  int first_row_;
  Block held_[kAtOnce ? 1 : kSteps];
};

}  // namespace tilewise::device
