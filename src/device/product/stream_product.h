// Products of few rows, which read next to nothing but the second operand: it goes from memory straight to the
// registers of mma.sync, 16 bytes of a row at a time. Waves share the block's rows and columns and take turns along the
// depth, each with the rows of its own turns in shared memory, so none waits for another before their sums are added
// up. A lane's 16 bytes are adjacent elements where an instruction wants pairs that are 8 apart: both operands are
// permuted alike, and sums don't care. For operands whose lines have whole runs, the first one of 16-bit elements.
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
  static constexpr int kRowChunks = C.block_k / kChunk, kCopies = C.block_m * kRowChunks / Machine::kLanes;
  static_assert(C.a.type == C.element && !C.a.transposed && C.a.scale_use == kScaleNever && C.a.vectors != 0);
  static_assert(!C.b.transposed && C.b.vectors != 0 && C.b.halves == 0 && C.block_k % kStep == 0);
  static_assert(kHalves == 1 || kHalves == 2, "rows of one instruction");
  static_assert(!kScaled || kRun % C.b.scale_depth == 0 || C.b.scale_depth % kRun == 0, "chunks have one scale");
  static_assert(!kHasScales || (kStride % C.b.scale_depth == 0 && (kSteps == 1 || kStep % C.b.scale_depth == 0)));
  static_assert(!kScaledSums || (C.b.scale_depth % kStep == 0 && C.b.scale_rows % C.block_n == 0));

  /// A turn's rows of a. Eight lanes of two rows read chunks that lie in banks of their own.
  struct Rows {
    Chunk chunk[C.block_m][kRowChunks];
    TILEWISE_INLINE Chunk* at(int row, int index) {
      constexpr int kOddRow = kChunks == 1 ? 4 : 1;
      const int turned = index ^ (row % 2 * kOddRow) ^ (kChunks == 4 ? index / 8 % 2 * 2 : 0);
      return &chunk[row][turned];
    }
  };
  /// What a lane has of a turn.
  struct Held {
    Chunk b[kSteps][kGroups];
    float scale[kSteps][kScaleGroups][kScales];
  };
  /// Where a lane's next turn begins. What several stages ahead of it is a constant away.
  struct Cursor {
    const uint8_t *a[kCopies], *b[kGroups];
    int64_t scale[kScaleGroups], scale_stride;
    const void* scales;
    int64_t left;  // of the depth, from the wave's first element on
    int32_t rows;  // of a
  };

 public:
  using Sums = JoinedSums<Ops, C>;
  union Shared {
    Rows rows[C.waves][C.stages];
    float sum[C.waves][C.block_m][C.block_n + C.kFloatPadding];
  };

  /// As Product::run(); `begin` is a multiple of 128.
  TILEWISE_INLINE static void run(Shared& shared, const OperandRows& a, const OperandRows& b, int64_t begin,
                                  int64_t end, Sums& sums) {
    if (begin >= end) return;
    Accumulator part[kGroups]{};
    Cursor at = cursor(a, b, begin, end);
    Rows* const rows = shared.rows[Machine::wave()];
    Held held[C.stages];
    for_each_index<0, C.stages>([&](auto index) {
      constexpr int kStage = decltype(index)::value;
      load<kStage>(held[kStage], rows[kStage], at);
    });
    TILEWISE_NO_UNROLL
    while (at.left > 0) {
      advance(at);
      for_each_index<0, C.stages>([&](auto index) {
        constexpr int kStage = decltype(index)::value;
        Machine::template wait_copies<C.stages - 1>();
        Machine::wave_sync();
        multiply(part, held[kStage], rows[kStage]);
        Machine::wave_sync();
        load<kStage>(held[kStage], rows[kStage], at);
      });
    }
    Ops::finish_copies();
    Machine::barrier();  // sums take the place of rows
    join(shared, part, sums);
  }

 private:
  TILEWISE_INLINE static int line_lane() { return Machine::lane() % kLineLanes; }
  TILEWISE_INLINE static int group_row() { return Machine::lane() / kLineLanes; }

  TILEWISE_INLINE static Cursor cursor(const OperandRows& a, const OperandRows& b, int64_t begin, int64_t end) {
    const int64_t depth = begin + Machine::wave() * C.block_k, own = depth + line_lane() * kRun;
    Cursor at;
    at.scales = b.scales, at.scale_stride = b.scale_depth_stride;
    at.left = end - depth, at.rows = a.rows;
    for_each_copy([&](int i, int row, int chunk) {
      at.a[i] = a.data + memory_row<Machine, C.a>(a, row) * a.line_stride + 2 * (depth + chunk * kChunk);
    });
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

  /// visit(i, row, chunk) of the chunks of a turn's rows that this lane copies.
  template <class Visit>
  TILEWISE_INLINE static void for_each_copy(const Visit& visit) {
    TILEWISE_UNROLL
    for (int i = 0; i < kCopies; ++i) {
      const int unit = Machine::lane() + i * Machine::kLanes;
      visit(i, unit / kRowChunks, unit % kRowChunks);
    }
  }

  /// Zeros behind the end, and in rows that a does not have.
  template <int kStage>
  TILEWISE_INLINE static void load(Held& to, Rows& rows, const Cursor& at) {
    constexpr int kAhead = kStage * kStride;
    for_each_copy([&](int i, int row, int chunk) {
      const bool valid = row < at.rows && kAhead + chunk * kChunk < at.left;
      Machine::copy_async(rows.at(row, chunk), valid ? at.a[i] + 2 * kAhead : at.a[0], valid);
    });
    Machine::commit_copies();
    const auto all = [](int) { return true; };
    if (at.left >= kAhead + C.block_k) {
      load_valid<kAhead>(to, at, all);
    } else {
      to = Held{};
      load_valid<kAhead>(to, at, [&](int step) { return kAhead + step * kStep + line_lane() * kRun < at.left; });
    }
  }

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

  TILEWISE_INLINE static void multiply(Accumulator (&to)[kGroups], const Held& held, Rows& rows) {
    TILEWISE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      Accumulator part[kGroups]{};
      for_each_index<0, kChunks>([&](auto index) {
        constexpr int kIndex = decltype(index)::value;
        uint32_t left[2][4];
        TILEWISE_UNROLL
        for (int h = 0; h < 2; ++h) {
          Chunk own{};
          if (h < kHalves) {
            const int chunk = (step * kLineLanes + line_lane()) * kChunks + kIndex;
            own = ordered(Machine::template load_shared<Chunk>(rows.at(kGroupRows * h + group_row(), chunk)));
          }
          TILEWISE_UNROLL
          for (int word = 0; word < 4; ++word) left[word / 2][h + 2 * (word % 2)] = own.word[word];
        }
        TILEWISE_UNROLL
        for (int g = 0; g < kGroups; ++g) {
          const Chunk right = widened<kIndex>(held.b[step][g], held.scale[step][kScaled ? g : 0]);
          Accumulator& sum = kScaledSums ? part[g] : to[g];
          Machine::template mma<C.element>(sum, left[0], right.word[0], right.word[1]);
          Machine::template mma<C.element>(sum, left[1], right.word[2], right.word[3]);
        }
      });
      if constexpr (kScaledSums) {
        TILEWISE_UNROLL
        for (int g = 0; g < kGroups; ++g) {
          TILEWISE_UNROLL
          for (int i = 0; i < 4; ++i) to[g][i] = fused_multiply_add(part[g][i], held.scale[step][0][0], to[g][i]);
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

  /// 8 elements of a lane's 16 bytes, times their scale where it goes into elements.
  template <int kIndex>
  TILEWISE_INLINE static Chunk widened(const Chunk& run, const float (&scale)[kScales]) {
    const float factor = scale[kScaled && kScales > 1 ? kIndex * kChunk / C.b.scale_depth : 0];
    if constexpr (C.b.type == C.element) {
      return run;
    } else if constexpr (C.b.type == kProductE4m3) {
      const WideRun<Machine, C.element> wide(run);
      const Chunk chunk = kIndex == 0 ? wide.first : wide.second;
      return kScaled ? multiplied(chunk, factor) : chunk;
    } else {
      // A scale above 2 is too large to be multiplied by that power first: rare where scales are powers of two.
      constexpr float kMost = 2.0f, kPower = fours_factor(C.element);
      const Chunk chunk = pairs_of_fours<C.element>(run.word[kIndex]);
      const bool fits = !kScaled || (factor <= kMost && factor >= -kMost);
      const Chunk once = multiplied(chunk, (!kScaled ? 1.0f : fits ? factor : kMost) * kPower);
      if (kScaled && Machine::any(!fits)) return multiplied(once, fits ? 1.0f : factor / kMost);
      return once;
    }
  }

  TILEWISE_INLINE static Chunk multiplied(const Chunk& chunk, float factor) {
    const uint32_t both = Machine::template pack<C.element>(factor, factor);
    Chunk to;
    TILEWISE_UNROLL
    for (int i = 0; i < 4; ++i) to.word[i] = Machine::template multiply_pair<C.element>(chunk.word[i], both);
    return to;
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
