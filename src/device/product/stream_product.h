// Products of few rows, which read next to nothing but the second operand: it goes from memory straight to the registers
// of mma.sync, 16 bytes of a row at a time. Waves share the block's rows and columns and take turns along the depth, so
// none waits for another before their sums are added up. A lane's 16 bytes are adjacent elements where an instruction
// wants pairs that are 8 apart: both operands are permuted alike, and sums don't care. For operands whose lines have
// whole runs, the first one of 16-bit elements.
#pragma once

#include "device/product/product.h"

namespace tilewise::device {

/// Sums of a block as its lanes get them from shared memory: runs of adjacent columns, the lanes of the block in turn.
template <class Ops, ProductConfig C>
class JoinedSums {
  using Machine = typename Ops::Machine;

 public:
  static constexpr int kRun = 4;

  TILEWISE_INLINE explicit JoinedSums(int /*wave*/) {}
  TILEWISE_INLINE void clear() {
    TILEWISE_UNROLL
    for (auto& run : run_) run = FloatRun<kRun>{};
  }
  template <class Visit>
  TILEWISE_INLINE void for_each_run(const Visit& visit) const {
    for_each([&](int step, int row, int col) { visit(row, col, run_[step]); });
  }
  /// Adds what read(row, col) returns.
  template <class Read>
  TILEWISE_INLINE void add(const Read& read) {
    for_each([&](int step, int row, int col) {
      const FloatRun<kRun> run = read(row, col);
      TILEWISE_UNROLL
      for (int i = 0; i < kRun; ++i) run_[step].value[i] += run.value[i];
    });
  }

 private:
  static constexpr int kThreads = C.waves * Machine::kLanes, kRowRuns = C.block_n / kRun;
  static constexpr int kUnits = C.block_m * kRowRuns, kSteps = ceil_div(kUnits, kThreads);

  template <class Visit>
  TILEWISE_INLINE static void for_each(const Visit& visit) {
    TILEWISE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const int unit = Machine::thread() + step * kThreads;
      if (kUnits % kThreads != 0 && unit >= kUnits) break;
      visit(step, unit / kRowRuns, unit % kRowRuns * kRun);
    }
  }

  FloatRun<kRun> run_[kSteps];
};

template <TileOps Ops, ProductConfig C>
class StreamProduct {
  using Machine = typename Ops::Machine;
  using Accumulator = typename Ops::Accumulator;
  static constexpr int kLineLanes = 4, kGroupRows = 8;  // of an instruction: lanes that share a row of b, and such rows
  static constexpr int kRun = 128 / bits_of_product_type(C.b.type), kChunks = kRun / kChunk;
  static constexpr int kStep = kLineLanes * kRun, kSteps = C.block_k / kStep;  // depth of a load, and loads of a turn
  static constexpr int kGroups = C.block_n / kGroupRows, kHalves = C.block_m / kGroupRows;
  static constexpr bool kScaled = C.b.scale_use == kScaleElements, kScaledSums = C.b.scale_use == kScaleSums;
  static constexpr bool kHasScales = kScaled || kScaledSums;
  /// Of a lane in a step: of rows, and of its elements.
  static constexpr int kScaleGroups = kScaled ? kGroups : 1, kScales = kScaled ? ceil_div(kRun, C.b.scale_depth) : 1;
  static constexpr int kStride = C.waves * C.block_k;  // from a wave's turn to its next one
  static_assert(C.a.type == C.element && !C.a.transposed && C.a.scale_use == kScaleNever && C.a.vectors != 0);
  static_assert(!C.b.transposed && C.b.vectors != 0 && C.b.halves == 0 && C.block_k % kStep == 0);
  static_assert(kHalves == 1 || kHalves == 2, "rows of one instruction");
  static_assert(!kScaled || kRun % C.b.scale_depth == 0 || C.b.scale_depth % kRun == 0, "chunks have one scale");
  static_assert(!kHasScales || (kStride % C.b.scale_depth == 0 && (kSteps == 1 || kStep % C.b.scale_depth == 0)));
  static_assert(!kScaledSums || (C.b.scale_depth % kStep == 0 && C.b.scale_rows % C.block_n == 0));

  /// What a lane has of a turn.
  struct Held {
    Chunk a[kSteps][kChunks][kHalves];
    Chunk b[kSteps][kGroups];
    float scale[kSteps][kScaleGroups][kScales];
  };
  /// Where a lane's next turn begins. What several stages ahead of it is a constant away.
  struct Cursor {
    const uint8_t *a[kHalves], *b[kGroups];
    int64_t scale[kScaleGroups], scale_stride;
    const void* scales;
    int64_t left;  // of the depth, from the wave's first element on
    bool has_row[kHalves];
  };

 public:
  using Sums = JoinedSums<Ops, C>;
  struct Shared {
    float sum[C.waves][C.block_m][C.block_n + C.kFloatPadding];
  };

  /// As Product::run(); `begin` is a multiple of 128.
  TILEWISE_INLINE static void run(Shared& shared, const OperandRows& a, const OperandRows& b, int64_t begin,
                                  int64_t end, Sums& sums) {
    if (begin >= end) return;
    Accumulator part[kGroups]{};
    Cursor at = cursor(a, b, begin, end);
    Held held[C.stages];
    for_each_index<0, C.stages>([&](auto stage) { load<decltype(stage)::value>(held[decltype(stage)::value], at); });
    TILEWISE_NO_UNROLL
    while (at.left > 0) {
      advance(at);
      for_each_index<0, C.stages>([&](auto stage) {
        multiply(part, held[decltype(stage)::value]);
        load<decltype(stage)::value>(held[decltype(stage)::value], at);
      });
    }
    join(shared, part, sums);
  }

 private:
  TILEWISE_INLINE static int line_lane() { return Machine::lane() % kLineLanes; }
  TILEWISE_INLINE static int group_row() { return Machine::lane() / kLineLanes; }

  TILEWISE_INLINE static Cursor cursor(const OperandRows& a, const OperandRows& b, int64_t begin, int64_t end) {
    const int64_t depth = begin + Machine::wave() * C.block_k, own = depth + line_lane() * kRun;
    Cursor at;
    at.scales = b.scales, at.scale_stride = b.scale_depth_stride;
    at.left = end - depth;
    TILEWISE_UNROLL
    for (int h = 0; h < kHalves; ++h) {
      const int row = kGroupRows * h + group_row();
      at.has_row[h] = row < a.rows;
      at.a[h] = a.data + memory_row<Machine, C.a>(a, row) * a.line_stride + 2 * own;
    }
    TILEWISE_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      const int64_t line = memory_row<Machine, C.b>(b, kGroupRows * g + group_row());
      at.b[g] = b.data + line * b.line_stride + bytes_of_elements<C.b>(own);
      if (g < kScaleGroups) at.scale[g] = scale_row<C.b>(b, line) + scale_depth<C.b>(b, own);
    }
    return at;
  }

  /// To where the stages' next turns begin.
  TILEWISE_INLINE static void advance(Cursor& at) {
    constexpr int kAll = C.stages * kStride;
    at.left -= kAll;
    TILEWISE_UNROLL
    for (auto& from : at.a) from += 2 * kAll;
    TILEWISE_UNROLL
    for (auto& from : at.b) from += bytes_of_elements<C.b>(kAll);
    if constexpr (kHasScales) {
      TILEWISE_UNROLL
      for (auto& from : at.scale) from += kAll / C.b.scale_depth * at.scale_stride;
    }
  }

  template <int kStage>
  TILEWISE_INLINE static void load(Held& to, const Cursor& at) {
    constexpr int kAhead = kStage * kStride;
    const auto all = [](int) { return true; };
    if (at.left >= kAhead + C.block_k) {
      load_valid<kAhead>(to, at, all);
    } else {
      to = Held{};
      load_valid<kAhead>(to, at, [&](int step) { return kAhead + step * kStep + line_lane() * kRun < at.left; });
    }
  }

  /// Of a, zeros in rows that it does not have.
  template <int kAhead, class Valid>
  TILEWISE_INLINE static void load_valid(Held& to, const Cursor& at, const Valid& valid) {
    TILEWISE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const int depth = kAhead + step * kStep;
      // A lane's sums are of all lanes' elements, its elements are its own.
      if (kScaledSums && depth < at.left) load_scales(to, step, at, depth);
      if (!valid(step)) continue;
      if constexpr (kScaled) load_scales(to, step, at, depth);
      TILEWISE_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        to.b[step][g] = Machine::load_stream(at.b[g] + bytes_of_elements<C.b>(depth));
      }
      TILEWISE_UNROLL
      for (int h = 0; h < kHalves; ++h) {
        TILEWISE_UNROLL
        for (int i = 0; i < kChunks; ++i) {
          to.a[step][i][h] = Chunk{};
          if (!at.has_row[h]) continue;
          to.a[step][i][h] = Machine::load_global(reinterpret_cast<const Chunk*>(at.a[h] + 2 * depth) + i);
        }
      }
    }
  }

  TILEWISE_INLINE static void load_scales(Held& to, int step, const Cursor& at, int depth) {
    TILEWISE_UNROLL
    for (int g = 0; g < kScaleGroups; ++g) {
      TILEWISE_UNROLL
      for (int i = 0; i < kScales; ++i) {
        const int64_t blocks = depth / C.b.scale_depth + i;
        to.scale[step][g][i] = load_scale<Machine, C.b.scale_type>(at.scales, at.scale[g] + blocks * at.scale_stride);
      }
    }
  }

  TILEWISE_INLINE static void multiply(Accumulator (&to)[kGroups], const Held& held) {
    TILEWISE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      uint32_t left[kChunks][2][4];
      TILEWISE_UNROLL
      for (int i = 0; i < kChunks; ++i) {
        TILEWISE_UNROLL
        for (int h = 0; h < 2; ++h) {
          const Chunk rows = h < kHalves ? ordered(held.a[step][i][h < kHalves ? h : 0]) : Chunk{};
          TILEWISE_UNROLL
          for (int word = 0; word < 4; ++word) left[i][word / 2][h + 2 * (word % 2)] = rows.word[word];
        }
      }
      TILEWISE_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        Chunk right[kChunks];
        widen(right, held.b[step][g], held.scale[step][kScaled ? g : 0]);
        Accumulator part{};
        Accumulator& sum = kScaledSums ? part : to[g];
        TILEWISE_UNROLL
        for (int i = 0; i < kChunks; ++i) {
          Machine::template mma<C.element>(sum, left[i][0], right[i].word[0], right[i].word[1]);
          Machine::template mma<C.element>(sum, left[i][1], right[i].word[2], right[i].word[3]);
        }
        if constexpr (kScaledSums) {
          TILEWISE_UNROLL
          for (int i = 0; i < 4; ++i) to[g][i] = fused_multiply_add(part[i], held.scale[step][0][0], to[g][i]);
        }
      }
    }
  }

  /// Elements of a chunk in the order in which b's of 4 bits come: 0, 4, 1, 5, 2, 6, 3, 7.
  TILEWISE_INLINE static Chunk ordered(const Chunk& chunk) {
    if constexpr (C.b.type == kProductE2m1) {
      Chunk to;
      TILEWISE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const uint32_t low = chunk.word[i], high = chunk.word[2 + i];
        to.word[2 * i] = (low & 0xFFFFu) | high << 16;
        to.word[2 * i + 1] = low >> 16 | (high & 0xFFFF0000u);
      }
      return to;
    } else {
      return chunk;
    }
  }

  /// A lane's 16 bytes as elements, times their scales where these go into elements.
  TILEWISE_INLINE static void widen(Chunk (&to)[kChunks], const Chunk& run, const float (&scale)[kScales]) {
    if constexpr (C.b.type == C.element) {
      to[0] = run;
    } else if constexpr (C.b.type == kProductE4m3) {
      const WideRun<Machine, C.element> wide(run);
      to[0] = wide.first, to[1] = wide.second;
    } else {
      TILEWISE_UNROLL
      for (int i = 0; i < kChunks; ++i) to[i] = pairs_of_fours<C.element>(run.word[i]);
    }
    if constexpr (C.b.type == kProductE2m1) {
      // A scale above 2 is too large to be multiplied by that power first: rare where scales are powers of two.
      constexpr float kMost = 2.0f, kPower = fours_factor(C.element);
      float first[kScales], rest[kScales];
      bool twice = false;
      TILEWISE_UNROLL
      for (int i = 0; i < kScales; ++i) {
        const float factor = kScaled ? scale[i] : 1.0f;
        const bool fits = factor <= kMost && factor >= -kMost;
        first[i] = (fits ? factor : kMost) * kPower, rest[i] = fits ? 1.0f : factor / kMost;
        twice |= !fits;
      }
      multiply_pairs(to, first);
      if (kScaled && Machine::any(twice)) multiply_pairs(to, rest);
    } else if constexpr (kScaled) {
      multiply_pairs(to, scale);
    }
  }

  TILEWISE_INLINE static void multiply_pairs(Chunk (&chunks)[kChunks], const float (&factor)[kScales]) {
    TILEWISE_UNROLL
    for (int i = 0; i < kChunks; ++i) {
      const float own = factor[kScales == 1 ? 0 : i * kChunk / C.b.scale_depth];
      const uint32_t both = Machine::template pack<C.element>(own, own);
      TILEWISE_UNROLL
      for (uint32_t& pair : chunks[i].word) pair = Machine::template multiply_pair<C.element>(pair, both);
    }
  }

  TILEWISE_INLINE static void join(Shared& shared, const Accumulator (&part)[kGroups], Sums& sums) {
    const int wave = Machine::wave();
    TILEWISE_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      TILEWISE_UNROLL
      for (int h = 0; h < kHalves; ++h) {
        float* const to = &shared.sum[wave][kGroupRows * h + group_row()][kGroupRows * g + 2 * line_lane()];
        Machine::store_shared(to, FloatRun<2>{{part[g][2 * h], part[g][2 * h + 1]}});
      }
    }
    Machine::barrier();
    TILEWISE_UNROLL
    for (int w = 0; w < C.waves; ++w) {
      sums.add([&](int row, int col) {
        return Machine::template load_shared<FloatRun<Sums::kRun>>(&shared.sum[w][row][col]);
      });
    }
  }
};

}  // namespace tilewise::device
