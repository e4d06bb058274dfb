// Loading rows that lie anywhere into shared tiles: asynchronously where the machine can and elements are those of the
// tile, else through registers, where fp8 is widened. Whoever computes with a tile leaves out the rows that stand for
// none; columns past the used ones are zeros.
#pragma once

#include "device/tile/byte_tile.h"
#include "device/tile/loader.h"
#include "device/tile/widen.h"

namespace tilewise::device {

/// Units of 16 bytes of a tile, each the work of one lane, some at once: visit(all_row, row, unit, find(all_row, row))
/// for those of row all_row + row, where all_row is known to the compiler. What find() reads waits for no visit: copies
/// under way keep their order with all that is read from memory, and a row at a time took a lone wave 35 instructions a
/// copy instead of 5.
template <int kThreads, int kRows, int kRowUnits, class Find, class Visit>
TILEWISE_INLINE void for_each_unit(int thread, const Find& find, const Visit& visit) {
  constexpr int kUnits = kRows * kRowUnits, kSteps = ceil_div(kUnits, kThreads), kAtOnce = minimum(8, kSteps);
  // Every lane keeps its unit of a row and moves down by whole rows.
  constexpr bool kEvenSteps = kUnits % kThreads == 0 && kThreads % kRowUnits == 0 &&
                              (kRowUnits & (kRowUnits - 1)) == 0 && kSteps % kAtOnce == 0;
  if constexpr (kEvenSteps) {
    constexpr int kRowsAStep = kThreads / kRowUnits;
    const auto row = static_cast<int>(static_cast<uint32_t>(thread) / kRowUnits);
    const auto unit = static_cast<int>(static_cast<uint32_t>(thread) % kRowUnits);
    for_each_index<0, kSteps / kAtOnce>([&](auto batch) {
      constexpr int kFirst = decltype(batch)::value * kAtOnce;
      decltype(find(0, 0)) found[kAtOnce];
      TILEWISE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) found[i] = find((kFirst + i) * kRowsAStep, row);
      TILEWISE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) visit((kFirst + i) * kRowsAStep, row, unit, found[i]);
    });
  } else {
    TILEWISE_NO_UNROLL
    for (int first = thread; first < kUnits; first += kAtOnce * kThreads) {
      decltype(find(0, 0)) found[kAtOnce];
      TILEWISE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) found[i] = find(0, minimum(first + i * kThreads, kUnits - 1) / kRowUnits);
      TILEWISE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int each = first + i * kThreads;
        if (kUnits % (kAtOnce * kThreads) != 0 && each >= kUnits) break;
        visit(0, each / kRowUnits, each % kRowUnits, found[i]);
      }
    }
  }
}

/// Rows that lie anywhere, a tile's at a time. Those that stand for none repeat another, or, where some lack, are null
/// and become zeros.
template <int Element, bool MayLack = false>
struct GatheredRows {
  static constexpr int kElement = Element;
  static constexpr bool kMayLack = MayLack;
  using Bits = ElementBits<Element>;
  const Bits* const* rows;  // in shared memory: where the tile's rows are
  int32_t cols;             // used elements of a row
  const Bits* anywhere;     // where some lack: the address of a copy that reads nothing

  template <class Machine>
  TILEWISE_INLINE const Bits* row(int index) const {
    return Machine::template load_shared<const Bits*>(rows + index);
  }
  TILEWISE_INLINE static bool is_there(const Bits* row) { return !kMayLack || row != nullptr; }
  TILEWISE_INLINE const Bits* address(const Bits* row) const { return is_there(row) ? row : anywhere; }
};

/// Copies 16 bytes of such a row, from an offset in it on, or zeros.
template <class Machine, class Source>
TILEWISE_INLINE void copy_bytes(void* to, const Source& source, const uint8_t* row, int offset) {
  Machine::copy_async(to, source.address(row) + offset, source.is_there(row));
}

/// As TileLoader, from GatheredRows.
template <class Ops, auto C, class Tile, class Source, bool kTight = false,
          bool kAsync = Ops::kAsyncCopies && Source::kElement == Tile::kElement>
class GatherLoader {
  using Machine = typename Ops::Machine;
  static constexpr int kRowUnits = Tile::kDepth / kChunk;

 public:
  TILEWISE_INLINE void start(Tile& tile, const Source& source) {
    for_each_unit<C.waves * Machine::kLanes, Tile::kRows, kRowUnits>(
        Machine::not_hoisted(Machine::thread()),
        [&](int all_row, int row) { return source.template row<Machine>(all_row + row); },
        [&](int all_row, int row, int chunk, const auto* from) {
          copy_chunk<Ops, C>(tile.rows.chunk(all_row, row, 0, chunk), source.address(from), chunk * kChunk, source.cols,
                             source.is_there(from));
        });
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
  TILEWISE_INLINE void start(Tile&, const Source& source) {
    source_ = source;
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
    const auto* from = source_.template row<Machine>(row);
    Run run{};
    if (!source_.is_there(from)) return run;
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
  Run held_[kLate ? 1 : Runs::kSteps][Runs::kBlockRows];
};

/// fp8 elements of a tile, asynchronously: their bytes wait in shared memory, each 16 of them where the lane that asked
/// for them finds them again and widens them. Rows are exactly as long as the tile's.
template <class Ops, auto C, class Tile, class Source>
class BytesLoader {
  using Machine = typename Ops::Machine;
  static constexpr int kUnitBytes = 16, kRowUnits = Tile::kDepth / kUnitBytes, kThreads = C.waves * Machine::kLanes;

 public:
  TILEWISE_INLINE void start(uint8_t* bytes, const Source& source) {
    for_each_unit<kThreads, Tile::kRows, kRowUnits>(
        Machine::not_hoisted(Machine::thread()),
        [&](int all_row, int row) { return source.template row<Machine>(all_row + row); },
        [&](int all_row, int row, int unit, const uint8_t* from) {
          uint8_t* const to = bytes + all_row * Tile::kDepth + row * Tile::kDepth + unit * kUnitBytes;
          copy_bytes<Machine>(to, source, from, unit * kUnitBytes);
        });
    Machine::commit_copies();
  }

  TILEWISE_INLINE void finish(Tile& tile, const uint8_t* bytes) {
    for_each_unit<kThreads, Tile::kRows, kRowUnits>(
        Machine::not_hoisted(Machine::thread()),
        [&](int all_row, int row) { return bytes + all_row * Tile::kDepth + row * Tile::kDepth; },
        [&](int all_row, int row, int unit, const uint8_t* from) {
          const WideRun<Machine, Tile::kElement> wide(Machine::template load_shared<Chunk>(from + unit * kUnitBytes));
          // Lanes 4 apart store to the same banks where a row is 128 elements or more: every other four of them begin
          // with the second half.
          const bool turned = kRowUnits % 8 == 0 && (unit & 4) != 0;
          Machine::store_shared(tile.rows.chunk(all_row, row, 0, 2 * unit + turned), turned ? wide.second : wide.first);
          Machine::store_shared(tile.rows.chunk(all_row, row, 0, 2 * unit + !turned),
                                turned ? wide.first : wide.second);
        });
  }
};

/// A ByteTile, asynchronously. Rows are exactly as long as the tile's.
template <class Ops, auto C, class Tile, class Source>
class ByteTileLoader {
  using Machine = typename Ops::Machine;

 public:
  TILEWISE_INLINE void start(Tile& tile, const Source& source) {
    for_each_unit<C.waves * Machine::kLanes, Tile::kRows, Tile::kDepth / Tile::kChunkBytes>(
        Machine::not_hoisted(Machine::thread()),
        [&](int all_row, int row) { return source.template row<Machine>(all_row + row); },
        [&](int all_row, int row, int chunk, const uint8_t* from) {
          copy_bytes<Machine>(tile.chunk(all_row, row, 0, chunk), source, from, chunk * Tile::kChunkBytes);
        });
    Machine::commit_copies();
  }
  TILEWISE_INLINE void finish(Tile&) {}
};

}  // namespace tilewise::device
