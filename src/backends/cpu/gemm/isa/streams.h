// Few rows: weights are read once, where they lie, at the speed of memory.
#pragma once

#include <stdint.h>

#include "backends/cpu/gemm/isa/panels.h"

namespace tilewise::backends::cpu {

/// Units of a packed row.
template <class C>
TILEWISE_INLINE int64_t stream_stride(int64_t depth) {
  return round_up(depth_units<C>(depth), C::V::kLanes);
}

template <class C>
struct StreamScratch {
  RealOf<C>* rows;
  TILEWISE_INLINE StreamScratch(Arena<typename C::V>& arena, int64_t rows, int64_t depth)
      : rows(arena.reals(rows * stream_stride<C>(depth))) {}
};

/// Weights in In.
template <class C, class In>
class StreamProduct {
  using V = typename C::V;
  using F = typename V::F;
  using Real = typename V::Real;
  static constexpr int64_t kElements = int64_t{V::kLanes} * C::kPair;  // of a vector of units
  // Sums held at once: half of the registers of sets with 32 and of those with 16.
  static constexpr int kSums = V::kPanelVectors * V::kTileRows >= 24 ? 16 : 8;
  static constexpr int kQuad = 4;  // rows that pass together
  // Elements of a cache line, and those requested ahead: processors' own requests end with a page.
  static constexpr int64_t kLine = 64 / int64_t{sizeof(In)}, kPage = 4096 / int64_t{sizeof(In)};
  static constexpr int64_t kDepth = 64;         // rows of weights with contiguous outputs visited together
  static constexpr int64_t kAhead = 8;          // and requested ahead
  static constexpr int kChunk = kSums / kQuad;  // vectors of sums of each row

 public:
  static void run(const GemmTask& t, const StreamScratch<C>& s, Real* c, int64_t ldc, int64_t second) {
    const int64_t stride = stream_stride<C>(t.depth);
    pack_rows<C>(t, 0, t.rows, 0, t.depth, s.rows, stride);
    for (int32_t i = 0; i < t.w.num_runs; ++i) {
      const In* w = static_cast<const In*>(t.w.runs[i].data);
      if (t.w.depth_stride == 1)
        along_depth(t, w, s.rows, stride, c + i * second, ldc);
      else
        along_outputs(t, w, s.rows, stride, c + i * second, ldc);
    }
  }

 private:
  /// Weights whose depth is contiguous: two outputs at a time, one of either half, so that memory is read in two long
  /// streams, as it answers soonest.
  static void along_depth(const GemmTask& t, const In* w, const Real* rows, int64_t stride, Real* c, int64_t ldc) {
    const int64_t half = (t.w.outputs + 1) / 2;
    for (int64_t j = 0; j < half; ++j) {
      const int64_t other = j + half < t.w.outputs ? j + half : j;
      const In *first = w + j * t.w.output_stride, *second = w + other * t.w.output_stride;
      for (int64_t row = 0; row < t.rows; row += kQuad) {
        const Real* a = rows + row * stride;
        Real* to = c + row * ldc;
        if (row == 0)
          dots<true>(t.rows, first, second, t.depth, a, stride, to + j, to + other, ldc);
        else
          dots<false>(t.rows - row, first, second, t.depth, a, stride, to + j, to + other, ldc);
      }
    }
  }

  template <bool kRequest>
  TILEWISE_INLINE static void dots(int64_t rows, const In* first, const In* second, int64_t depth, const Real* a,
                                   int64_t lda, Real* c, Real* d, int64_t ldc) {
    switch (rows) {
      case 1:
        return dot<1, kRequest>(first, second, depth, a, lda, c, d, ldc);
      case 2:
        return dot<2, kRequest>(first, second, depth, a, lda, c, d, ldc);
      case 3:
        return dot<3, kRequest>(first, second, depth, a, lda, c, d, ldc);
      default:
        return dot<4, kRequest>(first, second, depth, a, lda, c, d, ldc);
    }
  }

  /// c[r] and d[r] of two outputs and kRows rows, requesting weights ahead where these are the first rows. Not inlined:
  /// sums need all registers.
  template <int kRows, bool kRequest>
  [[gnu::noinline]] static void dot(const In* first, const In* second, int64_t depth, const Real* a, int64_t lda,
                                    Real* c, Real* d, int64_t ldc) {
    constexpr int kUnroll = kSums / (2 * kRows);  // vectors side by side, which hide the latency of sums
    constexpr int64_t kStep = kUnroll * kElements;
    F sums[kUnroll][2][kRows];
#pragma GCC unroll 8
    for (int u = 0; u < kUnroll; ++u)
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i)
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) sums[u][i][r] = V::zero();
    int64_t k = 0;
    for (; k + kStep <= depth; k += kStep) {
#pragma GCC unroll 8
      for (int u = 0; u < kUnroll; ++u) {
        const int64_t at = k + u * kElements;
        if (kRequest && (kStep % kLine == 0 ? u * kElements : at) % kLine == 0) {
          __builtin_prefetch(first + at + kPage, 0, 2);
          __builtin_prefetch(second + at + kPage, 0, 2);
        }
        add<kRows>(sums[u], C::load_units(first + at), C::load_units(second + at), a + at / C::kPair, lda);
      }
    }
    for (; k < depth; k += kElements)
      add<kRows>(sums[0], load_units<C>(first, k, depth), load_units<C>(second, k, depth), a + k / C::kPair, lda);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int u = 1; u < kUnroll; ++u)
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) sums[0][i][r] = V::add(sums[0][i][r], sums[u][i][r]);
      c[r * ldc] = V::reduce_add(sums[0][0][r]);
      d[r * ldc] = V::reduce_add(sums[0][1][r]);
    }
  }

  template <int kRows>
  TILEWISE_INLINE static void add(F (&sums)[2][kRows], F first, F second, const Real* a, int64_t lda) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const F x = V::load(a + r * lda);
      sums[0][r] = C::dot(sums[0][r], x, first);
      sums[1][r] = C::dot(sums[1][r], x, second);
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
