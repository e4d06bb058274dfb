// Few rows and quantised weights: these are read once, where they lie, and widened in registers. Sums get their scales
// where the scales' blocks end.
#pragma once

#include <stdint.h>

#include "backends/cpu/gemm/isa/code_steps.h"
#include "backends/cpu/isa/arena.h"

namespace tilewise::backends::cpu {

/// Of weights whose depth is contiguous.
template <class C>
struct ScaledStreamScratch {
  using Real = RealOf<C>;
  static constexpr int64_t kLongest = 128, kShortest = 16;  // steps and blocks
  static constexpr int64_t kQuad = 4;                       // rows that pass together
  int64_t units, scales;                                    // of a row, padded
  Real *rows, *row_factors;
  Real *weight_scales,  // of two outputs
      *row_scales,      // of all rows
      *joined;          // of two outputs and a quad of rows

  TILEWISE_INLINE ScaledStreamScratch(Arena<typename C::V>& arena, int64_t rows, int64_t depth)
      : units(round_up(depth, kLongest) / C::kPair + C::V::kLanes),
        scales(round_up(depth, kLongest) / kShortest + 16),
        rows(arena.reals(rows * units)),
        row_factors(arena.reals(rows)),
        weight_scales(arena.reals(rows ? 2 * scales : 0)),
        row_scales(arena.reals(rows * scales)),
        joined(arena.reals(rows ? 2 * kQuad * scales : 0)) {}
};

/// Weights in T, with scales of kBlock elements, or of multiples of 128.
template <class C, class T, int kBlock>
class ScaledStreamProduct {
  using V = typename C::V;
  using F = typename V::F;
  using Real = typename V::Real;
  using Steps = CodeSteps<C, T>;
  using Scratch = ScaledStreamScratch<C>;
  static constexpr int64_t kElements = Steps::kElements, kUnits = kElements / C::kPair;
  static constexpr int kVectors = Steps::kVectors, kShared = Steps::template kShared<kBlock>;
  static constexpr int64_t kBytes = kElements / kPacked<T>;  // of a step
  static constexpr int64_t kAhead = 4096;                    // bytes: processors' own requests end with a page
  static constexpr int64_t kQuad = Scratch::kQuad;

 public:
  static void run(const GemmTask& t, const Scratch& s, Real* c, int64_t ldc, int64_t second) {
    const bool row_scales = is_scaled_within(t.x_scales, t.depth);
    pack(t, s, row_scales);
    for (int32_t i = 0; i < t.w.num_runs; ++i) {
      const WeightRun& run = t.w.runs[i];
      const int64_t half = (t.w.outputs + 1) / 2;
      for (int64_t j = 0; j < half; ++j) {
        const int64_t outputs[2] = {j, j + half < t.w.outputs ? j + half : j};
        const T* codes[2];
        for (int o = 0; o < 2; ++o) {
          codes[o] = element_at<T>(run.data, outputs[o] * t.w.output_stride);
          read_scales(t.w.scales, run.row + outputs[o] * t.w.row_step, t.depth, s.weight_scales + o * s.scales);
        }
        for (int64_t row = 0; row < t.rows; row += kQuad) {
          const int64_t rows = t.rows - row < kQuad ? t.rows - row : kQuad;
          Real* to = c + row * ldc + i * second;
          if (row_scales) join(s, row, rows, t.depth);
          dots(t, s, codes, row, rows, row_scales, to + outputs[0], to + outputs[1], ldc);
        }
      }
    }
  }

 private:
  /// Rows with zeros behind their end, what is common to each one, and its scales.
  static void pack(const GemmTask& t, const Scratch& s, bool row_scales) {
    for (int64_t row = 0; row < t.rows; ++row) {
      Real* units = s.rows + row * s.units;
      __builtin_memset(units, 0, static_cast<size_t>(s.units) * sizeof(Real));
      s.row_factors[row] = t.w.factor;
      if (t.x_element == GemmElement::e4m3) {
        const int64_t at = memory_row(t, row);
        const float common = pack_codes(row_of<E4m3>(t, row), t.x_scales, at, t.depth, units);
        if (row_scales)
          read_scales(t.x_scales, at, t.depth, s.row_scales + row * s.scales);
        else
          s.row_factors[row] *= common;
      } else {
        pack_rows<C>(t, row, 1, 0, t.depth, units, s.units);
      }
      Steps::order(units, round_up(t.depth, kElements));
    }
  }

  /// A whole row of codes. Parts whose powers of two differ are brought to one, kept within what factors may be.
  static float pack_codes(const E4m3* codes, const GemmScales& scales, int64_t row, int64_t depth, Real* units) {
    if (!has_short_blocks(scales)) {
      pack_row<C>(codes, depth, units);
      return scale_at(scales, row, 0);
    }
    float common = 0, factors[kWidenedBlocks + 2] = {};
    for (int64_t k = 0; k < depth; k += kWidened) {
      const float part = short_factors<C>(scales, row, k, depth - k < kWidened ? depth - k : kWidened, factors);
      common = part > common ? part : common;
    }
    for (int64_t k = 0; k < depth; k += kWidened) {
      const int64_t size = depth - k < kWidened ? depth - k : kWidened;
      const float ratio = short_factors<C>(scales, row, k, size, factors) / common;
      for (float& factor : factors) factor = at_least(factor * ratio, 0x1p-110f);
      widen_scaled<C>(codes + k, size, factors, scales.block_depth, units + k / C::kPair);
    }
    return common;
  }
  /// A NaN stays.
  TILEWISE_INLINE static float at_least(float x, float least) { return x < least ? least : x; }

  /// One for each kBlock elements, ones up to a whole vector behind them.
  static void read_scales(const GemmScales& s, int64_t row, int64_t depth, float* out) {
    const int64_t blocks = (depth + kBlock - 1) / kBlock;
    if (has_short_blocks(s)) {
      read_short_scales<C>(s, short_scales(s, row, 0), blocks, out);
    } else {
      const int64_t size = is_scaled_within(s, depth) ? s.block_depth / kBlock : blocks;
      const int64_t first = s.data ? row / s.block_rows * s.row_stride : 0;
      for (int64_t i = 0, block = 0; i < blocks; i += size, ++block) {
        const F scale = V::set1(s.data ? scale_value(s.element, s.data, first + block * s.depth_stride) : 1.0f);
        for (int64_t j = i; j < i + size && j < blocks; j += V::kLanes) V::store(out + j, scale);
      }
    }
    for (int64_t i = blocks; i < blocks + 16; ++i) out[i] = 1;
  }

  static void join(const Scratch& s, int64_t row, int64_t rows, int64_t depth) {
    const int64_t blocks = round_up(depth, kElements) / kBlock;
    for (int64_t o = 0; o < 2; ++o)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < blocks; ++i)
          s.joined[(o * kQuad + r) * s.scales + i] =
              s.weight_scales[o * s.scales + i] * s.row_scales[(row + r) * s.scales + i];
  }

  TILEWISE_INLINE static void dots(const GemmTask& t, const Scratch& s, const T* const (&codes)[2], int64_t row,
                                   int64_t rows, bool row_scales, Real* c, Real* d, int64_t ldc) {
    if (row_scales)
      with_scales<true>(t, s, codes, row, rows, c, d, ldc);
    else
      with_scales<false>(t, s, codes, row, rows, c, d, ldc);
  }
  template <bool kOfRows>
  TILEWISE_INLINE static void with_scales(const GemmTask& t, const Scratch& s, const T* const (&codes)[2], int64_t row,
                                          int64_t rows, Real* c, Real* d, int64_t ldc) {
    switch (rows) {
      case 1:
        return dot<1, kOfRows>(t, s, codes[0], codes[1], row, c, d, ldc);
      case 2:
        return dot<2, kOfRows>(t, s, codes[0], codes[1], row, c, d, ldc);
      case 3:
        return dot<3, kOfRows>(t, s, codes[0], codes[1], row, c, d, ldc);
      default:
        return dot<4, kOfRows>(t, s, codes[0], codes[1], row, c, d, ldc);
    }
  }

  /// c[r] and d[r] of two outputs and kRows rows. Not inlined: sums need all registers.
  template <int kRows, bool kOfRows>
  [[gnu::noinline]] static void dot(const GemmTask& t, const Scratch& s, const T* first, const T* second, int64_t row,
                                    Real* c, Real* d, int64_t ldc) {
    F sums[2][kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) sums[0][r] = sums[1][r] = V::zero();
    const Real* x = s.rows + row * s.units;
    const float* scales = kOfRows ? s.joined : s.weight_scales;
    const bool request = row == 0;
    int64_t k = 0;
    for (; k + kElements <= t.depth; k += kElements, first += kBytes, second += kBytes) {
      if (request && (kBytes >= 64 || k % (64 * kPacked<T>) == 0)) {
        __builtin_prefetch(first + kAhead, 0, 2);
        __builtin_prefetch(second + kAhead, 0, 2);
      }
      add<kRows, kOfRows>(sums, first, second, x + k / C::kPair, s.units, scales + k / kBlock, s.scales);
    }
    if (k < t.depth) {
      T tail[2][kBytes];
      copy_tail(first, t.depth - k, tail[0]);
      copy_tail(second, t.depth - k, tail[1]);
      add<kRows, kOfRows>(sums, tail[0], tail[1], x + k / C::kPair, s.units, scales + k / kBlock, s.scales);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      c[r * ldc] = V::reduce_add(sums[0][r]) * s.row_factors[row + r];
      d[r * ldc] = V::reduce_add(sums[1][r]) * s.row_factors[row + r];
    }
  }

  static void copy_tail(const T* codes, int64_t size, T (&tail)[kBytes]) {
    __builtin_memset(tail, 0, sizeof tail);
    for (int64_t i = 0; i < size; i += kPacked<T>) tail[i / kPacked<T>] = codes[i / kPacked<T>];
    if constexpr (kPacked<T> > 1)
      if (size % 2 != 0) tail[size / 2].pair &= 15;
  }

  template <int kRows, bool kOfRows>
  TILEWISE_INLINE static void add(F (&sums)[2][kRows], const T* first, const T* second, const Real* x, int64_t ldx,
                                  const float* scales, int64_t lds) {
    add_output<kRows, kOfRows>(sums[0], first, x, ldx, scales, lds);
    add_output<kRows, kOfRows>(sums[1], second, x, ldx, scales + (kOfRows ? kQuad : 1) * lds, lds);
  }

  /// One output after the other: few sets have registers for the weights of both.
  template <int kRows, bool kOfRows>
  TILEWISE_INLINE static void add_output(F (&sums)[kRows], const T* codes, const Real* x, int64_t ldx,
                                         const float* scales, int64_t lds) {
    // Sums of one row wait for each other.
    constexpr int kChains = kRows == 1 && kShared > 4 ? 4 : 1;
    F w[kVectors];
    Steps::load(w, codes);
#pragma GCC unroll 2
    for (int group = 0; group < kVectors / kShared; ++group) {
      F scale = V::zero();
      if constexpr (!kOfRows) scale = Steps::template scale<kBlock>(scales, group);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        F parts[kChains];
#pragma GCC unroll 4
        for (int chain = 0; chain < kChains; ++chain) parts[chain] = V::zero();
#pragma GCC unroll 8
        for (int v = 0; v < kShared; ++v) {
          const int at = group * kShared + v;
          parts[v % kChains] = C::dot(parts[v % kChains], V::load(x + r * ldx + at * V::kLanes), w[at]);
        }
        F part = parts[0];
#pragma GCC unroll 4
        for (int chain = 1; chain < kChains; ++chain) part = V::add(part, parts[chain]);
        if constexpr (kOfRows) scale = Steps::template scale<kBlock>(scales + r * lds, group);
        sums[r] = V::fma(part, scale, sums[r]);
      }
    }
  }
};

}  // namespace tilewise::backends::cpu
