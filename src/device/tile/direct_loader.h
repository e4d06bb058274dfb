// Loading tiles of one tensor that follow each other by copies that go straight to shared memory. On machines whose
// copies read windows.
#pragma once

#include "device/tile/steady_loader.h"

namespace tilewise::device {

/// Copies a tile, which lies behind the ones before it, to a place that is free, in parts that loops place where they
/// like.
template <class Ops, auto C, class Tile>
class DirectLoader {
  using Machine = typename Ops::Machine;
  using Source = RowSource<Tile::kElement>;
  static constexpr int kRowChunks = Tile::kDepth / kChunk, kThreads = C.waves * Machine::kLanes;

 public:
  static constexpr int kParts = Tile::kRows * kRowChunks / kThreads;  // of each wave
  static constexpr int kLoads = kParts, kStores = 0;
  static constexpr bool kEveryWave = kParts * kThreads == Tile::kRows * kRowChunks;  // has as many copies

  TILEWISE_INLINE void open(const Source& source) {
    window_.open(source);
    // Unsigned, so that quotient and remainder are a shift and a mask.
    const auto thread = static_cast<uint32_t>(Machine::thread());
    TILEWISE_UNROLL
    for (int copy = 0; copy < kParts; ++copy) {
      const uint32_t chunk = copy * kThreads + thread;
      const auto row = static_cast<int>(chunk / kRowChunks), place = static_cast<int>(chunk % kRowChunks);
      lane_offset_[copy] = window_.place(row, tile_chunk(row, place) * kChunk);
    }
    wave_chunks_ = Machine::wave() * Machine::kLanes;
  }

  /// As SteadyWindow's.
  TILEWISE_INLINE void seek(int32_t row) { window_.seek(row); }
  TILEWISE_INLINE void step() { window_.step(); }
  TILEWISE_INLINE int32_t last_row() const { return window_.last_row(); }

  TILEWISE_INLINE void copy(int part, Tile& tile) {
    auto* const to = tile.rows.data + (part * kThreads + wave_chunks_) * kChunk;
    Machine::copy_window(to, window_.window(), lane_offset_[part], window_.offset());
  }
  /// After the copies of a tile. Where it is far they leave zeros, and each lane loads what it would have copied:
  /// another wave's zeros may land later.
  TILEWISE_INLINE void copy_far(Tile& tile, int32_t first_row) const {
    if (!is_far()) return;
    Machine::template wait_copies<0>();
    const Source& source = window_.source();
    const auto thread = static_cast<uint32_t>(Machine::not_hoisted(Machine::thread()));
    TILEWISE_NO_UNROLL
    for (int copy = 0; copy < kParts; ++copy) {
      const uint32_t chunk = copy * kThreads + thread;
      const auto row = static_cast<int>(chunk / kRowChunks), place = static_cast<int>(chunk % kRowChunks);
      const int col = tile_chunk(row, place) * kChunk;
      const bool is_there = first_row + row < source.rows && (C.exact_dims || col < source.cols);
      copy_chunk<Ops, C>(tile.rows.data + chunk * kChunk, source.data + (first_row + row) * source.stride, col,
                         source.cols, is_there);
    }
  }
  TILEWISE_INLINE bool is_far() const { return window_.is_far(); }

 private:
  TILEWISE_INLINE static int tile_chunk(int row, int place) { return decltype(Tile::rows)::chunk_at(row, place); }

  SteadyWindow<Ops, C, Tile> window_;
  uint32_t lane_offset_[kParts];  // in the window, of what a lane copies of a tile
  int wave_chunks_;               // of a tile, before those that this wave copies
};

}  // namespace tilewise::device
