// Loading tiles of one tensor that follow each other, through registers: one window serves many tiles, so that a loop
// makes no descriptor. On machines with windows.
#pragma once

#include "device/tile/loader.h"

namespace tilewise::device {

/// A window that moves on when tiles pass its end, and for one that is not whole: where a machine looks for the end of
/// what lies further on, it never matters.
template <class Ops, auto C, class Tile>
class SteadyWindow {
  using Machine = typename Ops::Machine;
  using Windows = TileWindows<Ops, C, Tile>;
  using Window = typename Machine::Window;
  using Source = RowSource<Tile::kElement>;

 public:
  TILEWISE_INLINE void open(const Source& source) {
    source_ = source;
    stride_ = Windows::is_near(source) ? 2 * static_cast<uint32_t>(source.stride) : 0;
    // A power of 2 of rows, within 1 GB: no division.
    int32_t rows = 1 << 30;
    for (uint32_t bytes = stride_; bytes > 1; bytes /= 2) rows /= 2;
    rows_a_window_ = maximum(rows / 2, 1);
    move_to(0);
  }

  /// To the tile that begins at a row.
  TILEWISE_INLINE void seek(int32_t row) {
    if (row > last_row_) move_to(row);
    offset_ = static_cast<uint32_t>(row - first_row_) * stride_;
  }
  /// To the tile that follows, whose first row is last_row() at most.
  TILEWISE_INLINE void step() { offset_ += Tile::kRows * stride_; }
  TILEWISE_INLINE int32_t last_row() const { return last_row_; }

  TILEWISE_INLINE const Window& window() const { return window_; }
  /// Where the tile begins in the window.
  TILEWISE_INLINE uint32_t offset() const { return offset_; }
  /// Of an element of a tile, from there on; nowhere past the used columns.
  TILEWISE_INLINE uint32_t place(int row, int col) const {
    return Windows::place(static_cast<uint32_t>(row) * stride_, col, source_.cols);
  }
  TILEWISE_INLINE auto load_run(uint32_t skip, int row, int col) const {
    return Windows::load_run(window_, skip + static_cast<uint32_t>(row) * stride_, col, source_.cols, offset_);
  }

  /// Whether a tile spans too much for a window: nothing of it is loaded.
  TILEWISE_INLINE bool is_far() const { return stride_ == 0; }
  TILEWISE_INLINE const Source& source() const { return source_; }
  TILEWISE_INLINE void copy_far(Tile& tile, int32_t first_row) const {
    // Its addresses would be counted up in all turns otherwise.
    if (is_far()) Windows::copy_far(tile, source_, uniform<Machine>(Machine::not_hoisted(first_row)));
  }

 private:
  TILEWISE_INLINE void move_to(int32_t row) {
    first_row_ = row;
    last_row_ = minimum(row + rows_a_window_ - 1, source_.rows - Tile::kRows);
    window_ = Windows::window_from(source_, row);
  }

  Source source_;
  Window window_;
  int32_t first_row_, last_row_, rows_a_window_;
  uint32_t stride_, offset_;  // in bytes; the stride is 0 where a tile is far
};

/// Asks for a tile, which lies behind the ones before it, and stores it, both in parts that loops place where they
/// like: all loads of a tile, then all its stores. kTight: registers are few.
template <class Ops, auto C, class Tile, bool kTight>
class SteadyLoader {
  using Machine = typename Ops::Machine;
  using Source = RowSource<Tile::kElement>;
  using Runs = TileRuns<Ops, C, Tile>;

 public:
  static constexpr int kLoads = Runs::kSteps * Runs::kBlockRows, kStores = Runs::kSteps * Runs::kStoreParts,
                       kParts = kLoads + kStores;
  static constexpr bool kEveryWave = true;  // has as many loads

  TILEWISE_INLINE void open(const Source& source) { window_.open(source); }
  /// As SteadyWindow's.
  TILEWISE_INLINE void seek(int32_t row) { window_.seek(row); }
  TILEWISE_INLINE void step() { window_.step(); }
  TILEWISE_INLINE int32_t last_row() const { return window_.last_row(); }

  TILEWISE_INLINE void load(int part) {
    // Lanes without a block load nothing, but not by a branch: behind one, all lanes wait for all loads.
    const int this_thread = thread(), of_block = part % Runs::kBlockRows;
    const uint32_t nowhere = Runs::has_block(part / Runs::kBlockRows, this_thread) ? 0 : 1u << 31;
    Runs::visit_place(part / Runs::kBlockRows, this_thread, [&](int step, int all_row, int row, int col) {
      held_[step].row[of_block] = window_.load_run(nowhere, all_row + of_block + row, col);
    });
  }

  TILEWISE_INLINE void store(int part, Tile& tile) {
    Runs::visit_block(part / Runs::kStoreParts, thread(), [&](int step, int all_row, int row, int col) {
      Runs::store_part(part % Runs::kStoreParts, tile, held_[step], all_row, row, col);
    });
  }
  /// After the stores of a tile.
  TILEWISE_INLINE void copy_far(Tile& tile, int32_t first_row) const { window_.copy_far(tile, first_row); }
  TILEWISE_INLINE bool is_far() const { return window_.is_far(); }

 private:
  /// Where registers are few, addresses are worked out for each part.
  TILEWISE_INLINE static int thread() { return kTight ? Machine::not_hoisted(Machine::thread()) : Machine::thread(); }

  SteadyWindow<Ops, C, Tile> window_;
  typename Runs::Block held_[Runs::kSteps];
};

/// Two tiles of as many rows, each of a tensor of its own, that are asked for together.
template <class Ops, auto C, class First, class Second>
class SteadyPair {
  using FirstLoader = SteadyLoader<Ops, C, First, false>;
  using SecondLoader = SteadyLoader<Ops, C, Second, false>;

 public:
  static constexpr int kParts = FirstLoader::kLoads + SecondLoader::kLoads;

  TILEWISE_INLINE void open(const RowSource<First::kElement>& first, const RowSource<Second::kElement>& second) {
    first_.open(first);
    second_.open(second);
  }
  /// To the tiles that are asked for next, which lie behind the ones before them.
  TILEWISE_INLINE void move_to(int32_t first_row) {
    first_row_ = first_row;
    first_.seek(first_row);
    second_.seek(first_row);
  }
  TILEWISE_INLINE void load(int part) {
    if (part < FirstLoader::kLoads) {
      first_.load(part);
    } else {
      second_.load(part - FirstLoader::kLoads);
    }
  }
  TILEWISE_INLINE void load_all() {
    TILEWISE_UNROLL
    for (int part = 0; part < kParts; ++part) load(part);
  }
  TILEWISE_INLINE void store_all(First& first, Second& second) {
    TILEWISE_UNROLL
    for (int part = 0; part < FirstLoader::kStores; ++part) first_.store(part, first);
    first_.copy_far(first, first_row_);
    TILEWISE_UNROLL
    for (int part = 0; part < SecondLoader::kStores; ++part) second_.store(part, second);
    second_.copy_far(second, first_row_);
  }

 private:
  FirstLoader first_;
  SecondLoader second_;
  int32_t first_row_;
};

}  // namespace tilewise::device
