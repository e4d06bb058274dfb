// Loading tiles of one tensor that follow each other, through registers: one window serves many tiles, so that a loop
// makes no descriptor. On machines with windows.
#pragma once

#include "device/tile/loader.h"

namespace tilewise::device {

/// A window that moves on when tiles pass its end.
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

  /// Where a tile begins in the window.
  TILEWISE_INLINE uint32_t offset_of(int32_t first_row) {
    if (first_row - first_row_ >= rows_a_window_) move_to(first_row);
    return static_cast<uint32_t>(first_row - first_row_) * stride_;
  }
  TILEWISE_INLINE const Window& window() const { return window_; }

  /// Of the element of a tile at such an offset; nowhere past the used columns.
  TILEWISE_INLINE uint32_t place(uint32_t offset, int row, int col) const {
    return Windows::place(offset + static_cast<uint32_t>(row) * stride_, col, source_.cols);
  }
  TILEWISE_INLINE auto load_run(uint32_t offset, int row, int col) const {
    return Windows::load_run(window_, offset + static_cast<uint32_t>(row) * stride_, col, source_.cols);
  }

  /// A tile that spans too much for a window, of which nothing was loaded.
  TILEWISE_INLINE void copy_far(Tile& tile, int32_t first_row) const {
    // Its addresses would be counted up in all turns otherwise.
    if (stride_ == 0) Windows::copy_far(tile, source_, uniform<Machine>(Machine::not_hoisted(first_row)));
  }

 private:
  TILEWISE_INLINE void move_to(int32_t row) {
    first_row_ = row;
    window_ = Windows::window_from(source_, row);
  }

  Source source_;
  Window window_;
  int32_t first_row_, rows_a_window_;
  uint32_t stride_;  // in bytes; 0 where a tile is far
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

  TILEWISE_INLINE void load(int part, int32_t first_row) {
    if (part == 0) {
      first_row_ = first_row;
      offset_ = window_.offset_of(first_row);
    }
    // Lanes without a block load nothing, but not by a branch: behind one, all lanes wait for all loads.
    const int this_thread = thread(), of_block = part % Runs::kBlockRows;
    const uint32_t nowhere = Runs::has_block(part / Runs::kBlockRows, this_thread) ? 0 : 1u << 31;
    Runs::visit_place(part / Runs::kBlockRows, this_thread, [&](int step, int all_row, int row, int col) {
      held_[step].row[of_block] = window_.load_run(offset_ + nowhere, all_row + of_block + row, col);
    });
  }

  TILEWISE_INLINE void store(int part, Tile& tile) {
    Runs::visit_block(part / Runs::kStoreParts, thread(), [&](int step, int all_row, int row, int col) {
      Runs::store_part(part % Runs::kStoreParts, tile, held_[step], all_row, row, col);
    });
    if (part == kStores - 1) window_.copy_far(tile, first_row_);
  }

 private:
  /// Where registers are few, addresses are worked out for each part.
  TILEWISE_INLINE static int thread() { return kTight ? Machine::not_hoisted(Machine::thread()) : Machine::thread(); }

  SteadyWindow<Ops, C, Tile> window_;
  int32_t first_row_;
  uint32_t offset_;
  typename Runs::Block held_[Runs::kSteps];
};

}  // namespace tilewise::device
