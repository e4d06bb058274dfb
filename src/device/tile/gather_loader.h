// Bringing rows that lie anywhere into shared tiles: asynchronously where the machine can and elements are those of the
// tile, else through registers, where fp8 is widened. Whoever computes with a tile leaves out the rows that stand for
// none; columns past the used ones are zeros.
#pragma once

#include "device/tile/loader.h"
#include "device/tile/widen.h"

namespace tilewise::device {

/// As TileLoader, from a Source that says where rows lie: kElement, `cols` used elements of a row, and address(row) for
/// any row, of which those that stand for none repeat another.
template <class Ops, auto C, class Tile, class Source, bool kTight = false,
          bool kAsync = Ops::kAsyncCopies && Source::kElement == Tile::kElement>
class GatherLoader {
  using Machine = typename Ops::Machine;
  static constexpr int kThreads = C.waves * Machine::kLanes;
  static constexpr int kRowChunks = Tile::kDepth / kChunk;
  static constexpr int kUnits = Tile::kRows * kRowChunks;

 public:
  TILEWISE_INLINE void start(Tile& tile, const Source& source, int first_row) {
    const int thread = Machine::not_hoisted(Machine::thread());
    // Every row has an address of its own: all at once they pass a lone wave's registers (192 bytes spilled at 64 rows
    // of 128 elements).
    TILEWISE_UNROLL_BY_8
    for (int step = 0; step < ceil_div(kUnits, kThreads); ++step) {
      const int unit = thread + step * kThreads, row = unit / kRowChunks, chunk = unit % kRowChunks;
      if (kUnits % kThreads != 0 && unit >= kUnits) break;
      copy_chunk<Ops, C>(tile.rows.chunk(row, chunk), source.address(first_row + row), chunk * kChunk, source.cols);
    }
    Machine::commit_copies();
  }
  TILEWISE_INLINE void finish(Tile&) {}
};

template <class Ops, auto C, class Tile, class Source, bool kTight>
class GatherLoader<Ops, C, Tile, Source, kTight, false> {
  using Machine = typename Ops::Machine;
  using Runs = TileRuns<Ops, C, Tile>;
  using Widener = Widen<Machine, Source::kElement, Tile::kElement, Runs::kRun>;
  using Run = typename Widener::Run;
  /// A lane's part of a tile that would fill 64 registers and more is read once its place is free, some runs at a time.
  static constexpr int kRunBytes = Runs::kBlockRows * static_cast<int>(sizeof(Run));
  static constexpr bool kLate = kTight || Runs::kSteps * kRunBytes > 256;
  static constexpr int kStepsAtOnce = kRunBytes < 64 ? 64 / kRunBytes : 1;

 public:
  TILEWISE_INLINE void start(Tile&, const Source& source, int first_row) {
    source_ = source;
    first_row_ = first_row;
    if constexpr (kLate) return;
    Runs::for_each_block(Machine::thread(), [&](int step, int all_row, int row, int col) {
      TILEWISE_UNROLL
      for (int part = 0; part < Runs::kBlockRows; ++part) held_[step][part] = load_run(all_row + row + part, col);
    });
  }

  TILEWISE_INLINE void finish(Tile& tile) {
    const int thread = kLate ? Machine::not_hoisted(Machine::thread()) : Machine::thread();
    Runs::for_each_block(thread, [&](int step, int all_row, int row, int col) {
      if (kLate && step % kStepsAtOnce == 0) keep_order<Machine>();
      typename Runs::Block block;
      TILEWISE_UNROLL
      for (int part = 0; part < Runs::kBlockRows; ++part) {
        block.row[part] = Widener::widen(kLate ? load_run(all_row + row + part, col) : held_[step][part]);
      }
      Runs::store(tile, block, all_row, row, col);
    });
  }

 private:
  TILEWISE_INLINE Run load_run(int row, int col) const {
    const auto* from = source_.address(first_row_ + row);
    Run run{};
    if constexpr (C.vector_rows) {
      if (C.exact_dims || col < source_.cols) run = Machine::load_global(reinterpret_cast<const Run*>(from + col));
    } else {
      constexpr int kBits = Widener::kElementBits, kAWord = 32 / kBits;
      TILEWISE_UNROLL
      for (int i = 0; i < Runs::kRun; ++i) {
        const uint32_t element = col + i < source_.cols ? Machine::load_global(from + col + i) : 0;
        run.word[i / kAWord] |= element << (kBits * (i % kAWord));
      }
    }
    return run;
  }

  Source source_;
  int first_row_;
  Run held_[kLate ? 1 : Runs::kSteps][Runs::kBlockRows];
};

}  // namespace tilewise::device
