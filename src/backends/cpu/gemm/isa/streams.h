// Few rows: weights are read once, where they lie, at the speed of memory.
#pragma once

#include <stdint.h>

#include "backends/cpu/gemm/isa/panels.h"

namespace tilewise::backends::cpu {

template <class C, class In>
class StreamProduct {
  using V = typename C::V;
  using F = typename V::F;
  using Real = typename V::Real;
  static constexpr int64_t kElements = int64_t{V::kLanes} * C::kPair;  // of a vector of units
  // Sums held at once: half of the registers of sets with 32 and of those with 16.
  static constexpr int kSums = V::kPanelVectors * V::kTileRows >= 24 ? 16 : 8;
  static constexpr int kQuad = 4;     // rows that pass together
  static constexpr int kColumns = 8;  // whose weights all rows pass before the next ones
  static constexpr int columns_of(int rows) { return rows == 1 ? kColumns : rows == 2 ? kSums / 2 : kSums / 4; }
  static constexpr int64_t kLine = 64 / int64_t{sizeof(In)};  // elements of a cache line
  static constexpr int64_t kDepth = 64;         // rows of weights with contiguous outputs visited together
  static constexpr int64_t kAhead = 8;          // and requested ahead
  static constexpr int kChunk = kSums / kQuad;  // vectors of sums of each row

 public:
  struct Scratch {
    Real* rows;
    TILEWISE_INLINE Scratch(Arena<V>& arena, int64_t rows, int64_t depth)
        : rows(arena.reals(rows * stride_of(depth))) {}
  };

  static void run(const GemmTask& t, const Scratch& s, Real* c, int64_t ldc, int64_t second) {
    const int64_t stride = stride_of(t.depth);
    for (int64_t row = 0; row < t.rows; ++row)
      pack_row<C>(PanelProduct<C, In>::row_of(t, row), t.depth, s.rows + row * stride);
    for (int32_t i = 0; i < t.w.num_runs; ++i) {
      const In* w = static_cast<const In*>(t.w.runs[i].data);
      if (t.w.depth_stride == 1)
        along_depth(t, w, s.rows, stride, c + i * second, ldc);
      else
        along_outputs(t, w, s.rows, stride, c + i * second, ldc);
    }
  }

 private:
  TILEWISE_INLINE static int64_t stride_of(int64_t depth) { return round_up(depth_units<C>(depth), V::kLanes); }

  static void along_depth(const GemmTask& t, const In* w, const Real* rows, int64_t stride, Real* c, int64_t ldc) {
    for (int64_t output = 0; output < t.w.outputs; output += kColumns) {
      for (int64_t row = 0; row < t.rows; row += kQuad) {
        const Real* a = rows + row * stride;
        Real* to = c + row * ldc;
        // What is requested is the next outputs' while the first rows pass.
        switch (t.rows - row) {
          case 1:
            some_columns<1>(t, w, output, a, stride, to, ldc, row == 0);
            break;
          case 2:
            some_columns<2>(t, w, output, a, stride, to, ldc, row == 0);
            break;
          case 3:
            some_columns<3>(t, w, output, a, stride, to, ldc, row == 0);
            break;
          default:
            some_columns<4>(t, w, output, a, stride, to, ldc, row == 0);
            break;
        }
      }
    }
  }

  template <int kRows>
  TILEWISE_INLINE static void some_columns(const GemmTask& t, const In* w, int64_t output, const Real* a, int64_t lda,
                                           Real* c, int64_t ldc, bool first) {
    for (int64_t j = output; j < output + kColumns && j < t.w.outputs; j += columns_of(kRows))
      dot<kRows>(t, w, j, a, lda, c, ldc, first);
  }

  /// c[r][output + i] of kRows rows and as many outputs as registers hold. Not inlined: sums need all registers.
  template <int kRows>
  [[gnu::noinline]] static void dot(const GemmTask& t, const In* w, int64_t output, const Real* a, int64_t lda, Real* c,
                                    int64_t ldc, bool first) {
    constexpr int kTogether = columns_of(kRows), kVectors = (kRows * kTogether + V::kLanes - 1) / V::kLanes;
    const In* rows[kTogether];
#pragma GCC unroll 8
    for (int i = 0; i < kTogether; ++i) {
      const int64_t there = output + i < t.w.outputs ? output + i : t.w.outputs - 1;
      rows[i] = w + there * t.w.output_stride;
    }
    F sums[kVectors][V::kLanes];  // [output][row]
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
#pragma GCC unroll 16
      for (int i = 0; i < V::kLanes; ++i) sums[v][i] = V::zero();
    const int64_t next = kColumns * t.w.output_stride;
    int64_t k = 0;
    for (; k + kElements <= t.depth; k += kElements) {
#pragma GCC unroll 8
      for (int i = 0; i < kTogether; ++i) {
        if (k % kLine == 0 && first) __builtin_prefetch(rows[i] + k + next, 0, 2);
        add<kRows>(sums, i, C::load_units(rows[i] + k), a + k / C::kPair, lda);
      }
    }
    if (k < t.depth) {
#pragma GCC unroll 8
      for (int i = 0; i < kTogether; ++i)
        add<kRows>(sums, i, load_units<C>(rows[i], k, t.depth), a + k / C::kPair, lda);
    }
    alignas(64) Real totals[kVectors * V::kLanes];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) V::store(totals + v * V::kLanes, V::sum_each(sums[v]));
    const int64_t left = t.w.outputs - output, count = left < kTogether ? left : kTogether;
    for (int r = 0; r < kRows; ++r)
      for (int64_t i = 0; i < count; ++i) c[r * ldc + output + i] = totals[i * kRows + r];
  }

  template <int kRows, int kVectors>
  TILEWISE_INLINE static void add(F (&sums)[kVectors][V::kLanes], int output, F weights, const Real* a, int64_t lda) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      F& sum = sums[(output * kRows + r) / V::kLanes][(output * kRows + r) % V::kLanes];
      sum = C::dot(sum, V::load(a + r * lda), weights);
    }
  }

  /// Weights whose outputs are contiguous: sums of all outputs of the task stay near while the depth passes.
  static void along_outputs(const GemmTask& t, const In* w, const Real* rows, int64_t stride, Real* c, int64_t ldc) {
    for (int64_t row = 0; row < t.rows; ++row)
      __builtin_memset(c + row * ldc, 0, static_cast<size_t>(round_up(t.w.outputs, kChunk * V::kLanes)) * sizeof(Real));
    for (int64_t depth = 0; depth < t.depth; depth += kDepth) {
      const int64_t size = t.depth - depth < kDepth ? t.depth - depth : kDepth;
      const In* block = w + depth * t.w.depth_stride;
      for (int64_t row = 0; row < t.rows; row += kQuad) {
        const Real* a = rows + row * stride + depth / C::kPair;
        Real* to = c + row * ldc;
        switch (t.rows - row) {
          case 1:
            accumulate<1>(t, block, size, a, stride, to, ldc);
            break;
          case 2:
            accumulate<2>(t, block, size, a, stride, to, ldc);
            break;
          case 3:
            accumulate<3>(t, block, size, a, stride, to, ldc);
            break;
          default:
            accumulate<4>(t, block, size, a, stride, to, ldc);
            break;
        }
      }
    }
    for (int64_t row = 0; row < t.rows; ++row)
      for (int64_t j = 0; j < t.w.outputs; j += kElements) C::order_row(c + row * ldc + j);
  }

  template <int kRows>
  [[gnu::noinline]] static void accumulate(const GemmTask& t, const In* w, int64_t size, const Real* a, int64_t lda,
                                           Real* c, int64_t ldc) {
    for (int64_t j = 0; j < t.w.outputs; j += kChunk * V::kLanes) {
      F sums[kRows][kChunk];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < kChunk; ++v) sums[r][v] = V::load(c + r * ldc + j + v * V::kLanes);
      for (int64_t k = 0; k < size; k += C::kPair) {
        const In *even = w + k * t.w.depth_stride, *odd = k + 1 < size ? even + t.w.depth_stride : nullptr;
        __builtin_prefetch(even + kAhead * t.w.depth_stride + j, 0, 2);
        F weights[kChunk / C::kPair][C::kPair];
#pragma GCC unroll 4
        for (int v = 0; v < kChunk / C::kPair; ++v) {
          const int64_t at = j + v * kElements;
          C::load_shuffled(weights[v], even, odd, at < t.w.outputs ? at : 0, t.w.outputs);
        }
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const F x = V::set1(a[r * lda + k / C::kPair]);
#pragma GCC unroll 4
          for (int v = 0; v < kChunk; ++v) sums[r][v] = C::dot(sums[r][v], x, weights[v / C::kPair][v % C::kPair]);
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < kChunk; ++v) V::store(c + r * ldc + j + v * V::kLanes, sums[r][v]);
    }
  }
};

}  // namespace tilewise::backends::cpu
