// Few rows: weights are read once, where they lie, at the speed of memory.
#pragma once

#include <stdint.h>

#include "backends/cpu/gemm/isa/panels.h"

namespace tilewise::backends::cpu {

/// How few rows meet weights in In: so many elements at a time, as vectors of units, and in which order of the depth.
template <class C>
struct NumbersInOrder {
  using F = typename C::V::F;
  static constexpr int64_t kElements = int64_t{C::V::kLanes} * C::kPair;
  static constexpr int kVectors = 1;
  static constexpr int kOutputs = 2, kRows = 4;  // that meet

  template <class In>
  TILEWISE_INLINE static void load(F (&w)[kVectors], const In* from) {
    w[0] = C::load_units(from);
  }
  /// Units of a row in the steps' order.
  TILEWISE_INLINE static void order(RealOf<C>*, int64_t) {}
};

template <class C, class In>
struct NumberSteps : NumbersInOrder<C> {};

/// Units of a packed row: whole steps.
template <class C>
TILEWISE_INLINE int64_t stream_stride(int64_t depth) {
  return round_up(depth_units<C>(depth), 2 * C::V::kLanes);
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
  using Steps = NumberSteps<C, In>;
  static constexpr int64_t kElements = int64_t{V::kLanes} * C::kPair;  // of a vector of units
  // Sums held at once: half of the registers of sets with 32 and of those with 16.
  static constexpr int kSums = V::kPanelVectors * V::kTileRows >= 24 ? 16 : 8;
  static constexpr int kOutputs = Steps::kOutputs;
  static constexpr int kQuad = 4;  // rows that pass weights with contiguous outputs together
  // Elements of a cache line, and those requested ahead: processors' own requests end with a page.
  static constexpr int64_t kLine = 64 / int64_t{sizeof(In)}, kPage = 4096 / int64_t{sizeof(In)};
  static constexpr int64_t kDepth = 64;         // rows of weights with contiguous outputs visited together
  static constexpr int64_t kAhead = 8;          // and requested ahead
  static constexpr int kChunk = kSums / kQuad;  // vectors of sums of each row

 public:
  static void run(const GemmTask& t, const StreamScratch<C>& s, Real* c, int64_t ldc, int64_t second) {
    const int64_t stride = stream_stride<C>(t.depth);
    pack_rows<C>(t, 0, t.rows, 0, t.depth, s.rows, stride);
    const bool by_depth = t.w.depth_stride == 1;
    for (int64_t row = 0; by_depth && Steps::kVectors > 1 && row < t.rows; ++row) {
      Real* units = s.rows + row * stride;
      for (int64_t i = round_up(depth_units<C>(t.depth), V::kLanes); i < stride; i += V::kLanes)
        V::store(units + i, V::zero());
      Steps::order(units, stride);
    }
    for (int32_t i = 0; i < t.w.num_runs; ++i) {
      const In* w = static_cast<const In*>(t.w.runs[i].data);
      if (by_depth)
        along_depth(t, w, s.rows, stride, c + i * second, ldc);
      else
        along_outputs(t, w, s.rows, stride, c + i * second, ldc);
    }
  }

 private:
  /// Weights whose depth is contiguous: a few outputs at a time, one of each part of them, so that memory is read in a
  /// few long streams, as it answers soonest.
  static void along_depth(const GemmTask& t, const In* w, const Real* rows, int64_t stride, Real* c, int64_t ldc) {
    const int64_t part = (t.w.outputs + kOutputs - 1) / kOutputs;
    for (int64_t j = 0; j < part; ++j) {
      const In* weights[kOutputs];
      Real* to[kOutputs];
      for (int64_t i = 0; i < kOutputs; ++i) {
        const int64_t output = j + i * part < t.w.outputs ? j + i * part : j;
        weights[i] = w + output * t.w.output_stride;
        to[i] = c + output;
      }
      for (int64_t row = 0; row < t.rows; row += Steps::kRows) {
        const int64_t left = t.rows - row;
        row == 0 ? dots<true>(left, weights, t.depth, rows, stride, to, ldc)
                 : dots<false>(left, weights, t.depth, rows + row * stride, stride, to, ldc);
        for (Real*& at : to) at += Steps::kRows * ldc;
      }
    }
  }

  template <bool kRequest>
  TILEWISE_INLINE static void dots(int64_t rows, const In* const (&weights)[kOutputs], int64_t depth, const Real* a,
                                   int64_t lda, Real* const (&c)[kOutputs], int64_t ldc) {
    if (rows == 1) return dot<1, kRequest>(weights, depth, a, lda, c, ldc);
    if (Steps::kRows == 2 || rows == 2) return dot<2, kRequest>(weights, depth, a, lda, c, ldc);
    if constexpr (Steps::kRows > 2)
      rows == 3 ? dot<3, kRequest>(weights, depth, a, lda, c, ldc) : dot<4, kRequest>(weights, depth, a, lda, c, ldc);
  }

  /// c[i][r * ldc] of the outputs and kRows rows, requesting weights ahead where these are the first rows. Not inlined:
  /// sums need all registers.
  template <int kRows, bool kRequest>
  [[gnu::noinline]] static void dot(const In* const (&weights)[kOutputs], int64_t depth, const Real* a, int64_t lda,
                                    Real* const (&c)[kOutputs], int64_t ldc) {
    constexpr int kVectors = Steps::kVectors;
    constexpr int kChains = kSums / (kOutputs * kRows);  // side by side, which hides the latency of sums
    // Of steps of several vectors a whole line's worth at least, which is asked for once.
    constexpr int kLineSteps =
        kVectors > 1 && kLine > Steps::kElements ? static_cast<int>(kLine / Steps::kElements) : 1;
    constexpr int kUnroll = kChains / kVectors > kLineSteps ? kChains / kVectors : kLineSteps;
    constexpr int64_t kStep = kUnroll * Steps::kElements;
    F sums[kChains][kOutputs][kRows];
#pragma GCC unroll 8
    for (int u = 0; u < kChains; ++u)
#pragma GCC unroll 4
      for (int i = 0; i < kOutputs; ++i)
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) sums[u][i][r] = V::zero();
    int64_t k = 0;
    for (; k + kStep <= depth; k += kStep) {
#pragma GCC unroll 8
      for (int u = 0; u < kUnroll; ++u) {
        const int64_t at = k + u * Steps::kElements;
#pragma GCC unroll 4
        for (int i = 0; i < kOutputs; ++i) {
          if (kRequest && (kStep % kLine == 0 ? u * Steps::kElements : at) % kLine == 0)
            __builtin_prefetch(weights[i] + at + kPage, 0, 2);
          F w[kVectors];
          Steps::load(w, weights[i] + at);
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; ++v)
            add<kRows>(sums[(u * kVectors + v) % kChains][i], w[v], a + at / C::kPair + v * V::kLanes, lda);
        }
      }
    }
    for (; k < depth; k += Steps::kElements) {
      for (int i = 0; i < kOutputs; ++i) {
        F w[kVectors];
        k + Steps::kElements <= depth ? Steps::load(w, weights[i] + k) : load_last(w, weights[i] + k, depth - k);
        for (int v = 0; v < kVectors; ++v) add<kRows>(sums[0][i], w[v], a + k / C::kPair + v * V::kLanes, lda);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < kOutputs; ++i) {
#pragma GCC unroll 8
        for (int u = 1; u < kChains; ++u) sums[0][i][r] = V::add(sums[0][i][r], sums[u][i][r]);
        c[i][r * ldc] = V::reduce_add(sums[0][i][r]);
      }
    }
  }

  /// The last elements of an output, zeros behind them. Not inlined: it stands behind every step.
  [[gnu::noinline]] static void load_last(F (&w)[Steps::kVectors], const In* from, int64_t count) {
    alignas(64) In tail[Steps::kElements] = {};
    for (int64_t i = 0; i < count; ++i) tail[i] = from[i];
    Steps::load(w, tail);
  }

  template <int kRows>
  TILEWISE_INLINE static void add(F (&sums)[kRows], F w, const Real* a, int64_t lda) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) sums[r] = C::dot(sums[r], V::load(a + r * lda), w);
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
