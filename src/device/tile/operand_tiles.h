// Tiles that one wave of CDNA alone multiplies: its lanes load what each of them is to multiply straight to registers,
// as it lies in memory, fp8 too. No element passes through shared memory.
#pragma once

#include "device/tile/byte_numbers.h"
#include "device/tile/fragment.h"
#include "device/tile/registers.h"
#include "device/tile/shared_tile.h"

namespace tilewise::device {

template <int kBytes>
struct RunOfBytes {
  using Type = Choose<kBytes == 16, Chunk, Choose<kBytes == 8, HalfChunk, Choose<kBytes == 4, uint32_t, uint16_t>>>;
};
/// Up to 8 elements of a row as they lie in memory, in one load.
template <int kFrom, int kElements>
using LoadedRun = typename RunOfBytes<kElements* static_cast<int>(sizeof(ElementBits<kFrom>))>::Type;

/// The words of a run: four bytes each, or its two.
template <class Run>
inline constexpr int kWordsOf = ceil_div(static_cast<int>(sizeof(Run)), 4);
template <class Run>
TILEWISE_INLINE uint32_t word_of(const Run& run, int i) {
  if constexpr (sizeof(Run) <= 4) {
    return run;
  } else {
    return run.word[i];
  }
}
template <class Run>
TILEWISE_INLINE void set_word(Run& run, int i, uint32_t word) {
  if constexpr (sizeof(Run) <= 4) {
    run = static_cast<Run>(word);
  } else {
    run.word[i] = word;
  }
}

/// Elements of a run, two a word.
template <class Machine, int kFrom, int kTo, int kElements>
TILEWISE_INLINE void widen_run(uint32_t (&to)[kElements / 2], const LoadedRun<kFrom, kElements>& run) {
  if constexpr (kFrom != kE4m3) {
    static_assert(kFrom == kTo, "only fp8 is widened");
    TILEWISE_UNROLL
    for (int i = 0; i < kElements / 2; ++i) to[i] = word_of(run, i);
  } else {
    TILEWISE_UNROLL
    for (int i = 0; i < kElements; i += 4) {
      uint32_t two[2];
      if constexpr (kKnowsFnuz<Machine>) {
        float four[4];
        Machine::unpack_fnuz(four, word_of(run, i / 4));
        two[0] = pack_short<Machine, kTo>(four[0], four[1]);
        two[1] = pack_short<Machine, kTo>(four[2], four[3]);
      } else if constexpr (requires { Machine::template unpack_e4m3<kTo>(two, 0u); }) {
        Machine::template unpack_e4m3<kTo>(two, word_of(run, i / 4));
      } else {
        const auto wide = Widen<Machine, kE4m3, kTo, 4>::widen({{word_of(run, i / 4)}});
        two[0] = wide.word[0], two[1] = wide.word[1];
      }
      to[i / 2] = two[0];
      if (i + 2 < kElements) to[i / 2 + 1] = two[1];
    }
  }
}

/// Runs of fp8 that have come, as the machine unpacks them. NaN is rare.
template <class Machine, int kFrom, int kRuns, class Run>
TILEWISE_INLINE void translate_runs(Run (&runs)[kRuns]) {
  if constexpr (kFrom == kE4m3 && kKnowsFnuz<Machine>) {
    uint32_t nans = 0;
    TILEWISE_UNROLL
    for (int i = 0; i < kRuns * kWordsOf<Run>; ++i) {
      Run& run = runs[i / kWordsOf<Run>];
      const uint32_t word = word_of(run, i % kWordsOf<Run>);
      const uint32_t magnitude = unknown_word<Machine>(magnitudes(word));
      nans |= e4m3_nans(magnitude);
      set_word(run, i % kWordsOf<Run>, without_negative_zeros(word, magnitude));
    }
    if (!Machine::any((nans & 0x80808080u) != 0)) return;
    TILEWISE_UNROLL
    for (int i = 0; i < kRuns * kWordsOf<Run>; ++i) {
      Run& run = runs[i / kWordsOf<Run>];
      set_word(run, i % kWordsOf<Run>, with_fnuz_nans(word_of(run, i % kWordsOf<Run>)));
    }
  }
}

/// Where two rows of a tile begin that stand side by side in shared memory.
template <class Bits>
struct alignas(16) TwoRows {
  const Bits* from[2];
};

/// Rows x Depth elements that products take by rows: of each 16 of a row the 8 of the lane's half.
template <class Machine, int kFrom, int kTo, int Rows, int Depth>
class RowsInRegisters {
 public:
  static constexpr int kElement = kTo, kRowTiles = Rows / 32, kSteps = Depth / 16;
  using Bits = ElementBits<kFrom>;
  using Run = LoadedRun<kFrom, kChunk>;

  /// Of a tile whose rows begin at addresses that lie in shared memory.
  TILEWISE_INLINE void find(const Bits* const* rows) {
    const int lane = Machine::lane();
    TILEWISE_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      from_[r] = Machine::template load_shared<const Bits*>(rows + lane % 32 + 32 * r) + lane / 32 * kChunk;
    }
  }
  /// What find() has found.
  TILEWISE_INLINE void load() {
    TILEWISE_UNROLL
    for (int i = 0; i < kRowTiles * kSteps; ++i) {
      held_[i] = Machine::load_global(reinterpret_cast<const Run*>(from_[i / kSteps] + 16 * (i % kSteps)));
    }
  }

  TILEWISE_INLINE void translate() { translate_runs<Machine, kFrom>(held_); }
  TILEWISE_INLINE CdnaOperand step(int r, int k) const {
    uint32_t to[4];
    widen_run<Machine, kFrom, kTo, kChunk>(to, held_[r * kSteps + k]);
    return CdnaOperand{to[0], to[1], to[2], to[3]};
  }

 private:
  const Bits* from_[kRowTiles];
  Run held_[kRowTiles * kSteps];
};

/// Rows x Depth elements that products take by columns. Lanes load runs of a row, and a run's elements go to products
/// of different columns: the accumulators' columns stand in another order until order_columns().
template <class Machine, int kFrom, int kTo, int Rows, int Depth>
class ColumnsInRegisters {
 public:
  static constexpr int kElement = kTo;
  static constexpr int kRun = Depth % 128 == 0 ? 4 : 2, kGroups = Depth / (32 * kRun), kSteps = Rows / 16;
  static_assert(Depth % 64 == 0 && Rows % 32 == 0);
  using Bits = ElementBits<kFrom>;
  using Run = LoadedRun<kFrom, kRun>;

  /// As RowsInRegisters. Of the 16 rows of a step a lane has those that CdnaOps::to_operand() leaves it: four, and four
  /// that stand 8 further.
  TILEWISE_INLINE void find(const Bits* const* rows) {
    const auto* const first = rows + Machine::lane() / 32 * 4;
    TILEWISE_UNROLL
    for (int i = 0; i < 4 * kSteps; ++i) {
      const auto two = Machine::template load_shared<TwoRows<Bits>>(first + i / 2 * 8 + i % 2 * 2);
      from_[2 * i] = two.from[0], from_[2 * i + 1] = two.from[1];
    }
  }
  TILEWISE_INLINE void load() {
    const int col = first_col(Machine::lane() % 32);
    TILEWISE_UNROLL
    for (int i = 0; i < 8 * kSteps; ++i) {
      TILEWISE_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        held_[i * kGroups + g] = Machine::load_global(reinterpret_cast<const Run*>(from_[i] + col + 32 * kRun * g));
      }
    }
  }

  TILEWISE_INLINE void translate() { translate_runs<Machine, kFrom>(held_); }
  /// The operands of a step of a group: one for each element of its runs.
  TILEWISE_INLINE void step(CdnaOperand (&to)[kRun], int step, int g) const {
    if constexpr (kFrom == kE4m3 && kKnowsFnuz<Machine>) return floats_step(to, step, g);
    uint32_t wide[8][kRun / 2];
    TILEWISE_UNROLL
    for (int i = 0; i < 8; ++i) {
      widen_run<Machine, kFrom, kTo, kRun>(wide[i], held_[(8 * step + i) * kGroups + g]);
    }
    TILEWISE_UNROLL
    for (int t = 0; t < kRun; ++t) {
      TILEWISE_UNROLL
      for (int w = 0; w < 4; ++w) {
        const uint32_t a = wide[2 * w][t / 2], b = wide[2 * w + 1][t / 2];
        to[t][w] = t % 2 == 0 ? Machine::low_halves(a, b) : Machine::high_halves(a, b);
      }
    }
  }

  /// Accumulators of products with such tiles, each column to its own place. A lane's columns are its own in both
  /// orders: bit 2 of a row of the instruction, which is the lane's half, is bit 2 of its column.
  template <class Out>
  TILEWISE_INLINE static void order_columns(Out& of) {
    const Out from = of;
    TILEWISE_UNROLL
    for (int r = 0; r < Out::kRowTiles; ++r) {
      TILEWISE_UNROLL
      for (int c = 0; c < Out::kColTiles; ++c) {
        TILEWISE_UNROLL
        for (int i = 0; i < 16; ++i) {
          const int col = 32 * kRun * (c / kRun) + first_col(8 * (i / 4) + i % 4) + c % kRun;
          of.tile[r][col / 32][col % 32 / 8 * 4 + col % 4] = from.tile[r][c][i];
        }
      }
    }
  }

 private:
  /// step() of bytes that the machine unpacks to floats: those of two rows pair up at once.
  TILEWISE_INLINE void floats_step(CdnaOperand (&to)[kRun], int step, int g) const {
    TILEWISE_UNROLL
    for (int w = 0; w < 4; ++w) {
      float a[4], b[4];
      const int row = 8 * step + 2 * w;
      Machine::unpack_fnuz(a, word_of(held_[row * kGroups + g], 0));
      Machine::unpack_fnuz(b, word_of(held_[(row + 1) * kGroups + g], 0));
      TILEWISE_UNROLL
      for (int t = 0; t < kRun; ++t) to[t][w] = pack_short<Machine, kTo>(a[t], b[t]);
    }
  }

  /// Of a run of a group, by the row of the instruction.
  TILEWISE_INLINE static constexpr int first_col(int row) {
    const int half = row / 4 % 2, outer = row / 8;
    if constexpr (kRun == 4) return 4 * half + 8 * (row % 4) + 32 * outer;
    return 2 * (row % 2) + 4 * half + 8 * (row / 2 % 2) + 16 * outer;
  }

  const Bits* from_[8 * kSteps];
  Run held_[8 * kSteps * kGroups];
};

}  // namespace tilewise::device
