// Many rows and quantised weights: these are widened on their way into panels, and products get their scales where the
// scales' blocks end.
#pragma once

#include <stdint.h>

#include "backends/cpu/gemm/isa/panels.h"

namespace tilewise::backends::cpu {

template <class C>
class ScaledPanelProduct {
  using V = typename C::V;
  using F = typename V::F;
  using Real = typename V::Real;
  using Blocks = PanelBlocks<C>;
  static constexpr int64_t kScaled = 128;  // depth of the shortest blocks whose scales are left to products

 public:
  struct Scratch {
    typename PanelProduct<C>::Scratch operands;
    Real *units,         // kLanes outputs' weights
        *sums,           // of one block of rows and one panel, where tiles don't scale them
        *output_scales,  // of both runs
        *row_scales,
        *widened;  // kScaled rows of all outputs
    TILEWISE_INLINE Scratch(Arena<V>& arena, int64_t outputs)
        : operands(arena, outputs),
          units(arena.reals(outputs ? V::kLanes * Blocks::kStride : 0)),
          sums(arena.reals(outputs ? (Blocks::kRows + C::kRowPadding) * kPanel<V> : 0)),
          output_scales(arena.reals(outputs ? outputs + 2 * int64_t{kPanel<V>} : 0)),
          row_scales(arena.reals(outputs ? Blocks::kRows : 0)),
          widened(arena.reals(outputs ? kScaled * widened_stride(outputs) / C::kPair : 0)) {}
  };

  /// As PanelProduct's.
  static void run(const GemmTask& t, const Scratch& s, Real* c, int64_t ldc, int64_t second) {
    const int64_t step = is_scaled_within(t.x_scales, t.depth) || is_scaled_within(t.w.scales, t.depth)
                             ? kScaled
                             : int64_t{Blocks::kDepth};
    for (int64_t depth = 0; depth < t.depth; depth += step) {
      const int64_t size = t.depth - depth < step ? t.depth - depth : step, units = depth_units<C>(size);
      for (int32_t i = 0; i < t.w.num_runs; ++i)
        pack_run(t, i, depth, size, s, s.operands.panels + i * second * units, s.output_scales + i * second);
      for (int64_t row = 0; row < t.rows; row += Blocks::kRows) {
        const int64_t rows = t.rows - row < Blocks::kRows ? t.rows - row : Blocks::kRows;
        pack_scaled_rows(t, row, rows, depth, size, s);
        for (int32_t i = 0; i < t.w.num_runs; ++i) {
          const Real* panel = s.operands.panels + i * second * units;
          for (int64_t j = 0; j < t.w.outputs; j += kPanel<V>, panel += units * kPanel<V>) {
            const int64_t width = t.w.outputs - j < kPanel<V> ? t.w.outputs - j : int64_t{kPanel<V>};
            multiply(rows, width, units, s, panel, s.output_scales + i * second + j, c + row * ldc + i * second + j,
                     ldc, depth == 0);
          }
        }
      }
    }
  }

 private:
  static void pack_scaled_rows(const GemmTask& t, int64_t row, int64_t count, int64_t depth, int64_t size,
                               const Scratch& s) {
    if (t.x_element != GemmElement::e4m3) {
      pack_rows<C>(t, row, count, depth, size, s.operands.rows, Blocks::kStride);
      for (int64_t r = 0; r < count; ++r) s.row_scales[r] = 1;
      return;
    }
    for (int64_t r = 0; r < count; ++r)
      s.row_scales[r] = widen_row<C>(row_of<E4m3>(t, row + r), t.x_scales, memory_row(t, row + r), depth, size,
                                     s.operands.rows + r * Blocks::kStride);
  }

  static void pack_run(const GemmTask& t, int32_t run, int64_t depth, int64_t size, const Scratch& s, Real* panels,
                       Real* scales) {
    const WeightRun& w = t.w.runs[run];
    const bool fp4 = t.w.element == GemmElement::e2m1;
    if (t.w.depth_stride == 1) {
      if (fp4) return pack_codes<E2m1>(t, w, depth, size, s.units, panels, scales);
      return pack_codes<E4m3>(t, w, depth, size, s.units, panels, scales);
    }
    if (fp4) return pack_widened<E2m1>(t, w, depth, size, s.widened, panels, scales);
    if (t.w.scales.data && t.w.scales.block_depth < kScaled)
      return pack_widened<E4m3>(t, w, depth, size, s.widened, panels, scales);
    pack_paired<C>(static_cast<const E4m3*>(w.data) + depth * t.w.depth_stride, t.w.depth_stride, size, t.w.outputs,
                   panels);
    for (int64_t j = 0; j < t.w.outputs; ++j)
      scales[j] = scale_at(t.w.scales, w.row + j * t.w.row_step, depth) * t.w.factor;
  }

  /// pack_transposed() of rows that are widened first.
  template <class T>
  static void pack_codes(const GemmTask& t, const WeightRun& w, int64_t depth, int64_t size, Real* units, Real* panels,
                         Real* scales) {
    const int64_t deep = depth_units<C>(size);
    for (int64_t column = 0; column < round_up(t.w.outputs, kPanel<V>); column += V::kLanes) {
      for (int64_t r = 0; r < V::kLanes && column + r < t.w.outputs; ++r) {
        const int64_t output = column + r;
        const T* codes = element_at<T>(w.data, output * t.w.output_stride);
        if (depth + size < t.depth) request(codes + (depth + size) / kPacked<T>, size / kPacked<T>);
        scales[output] = t.w.factor * widen_row<C>(codes, t.w.scales, w.row + output * t.w.row_step, depth, size,
                                                   units + r * Blocks::kStride);
      }
      Real* panel = panels + column / kPanel<V> * deep * kPanel<V> + column % kPanel<V>;
      for (int64_t unit = 0; unit < deep; unit += V::kLanes) {
        F block[V::kLanes];
#pragma GCC unroll 16
        for (int r = 0; r < V::kLanes; ++r)
          block[r] = column + r < t.w.outputs ? V::load(units + r * Blocks::kStride + unit) : V::zero();
        V::transpose(block);
        const int64_t left = deep - unit < V::kLanes ? deep - unit : V::kLanes;
        for (int64_t u = 0; u < left; ++u) V::store(panel + (unit + u) * kPanel<V>, block[u]);
      }
    }
  }

  /// Elements of a row of widened weights.
  static constexpr int64_t widened_stride(int64_t outputs) { return round_up(outputs, kPanel<V>) + kPanel<V>; }

  /// Weights whose outputs are contiguous and whose scales change from one element of the depth to the next: those of a
  /// product with the other side of weights as they are stored. Each is rounded to the operands' elements once.
  template <class T>
  static void pack_widened(const GemmTask& t, const WeightRun& w, int64_t depth, int64_t size, Real* buffer,
                           Real* panels, Real* scales) {
    using Operand = typename GatheredElement<kPairs<C>, Real>::Type;
    auto* widened = reinterpret_cast<Operand*>(buffer);
    const int64_t stride = widened_stride(t.w.outputs), block = t.w.scales.block_rows;
    for (int64_t d = 0; d < size; ++d) {
      const T* codes = element_at<T>(w.data, (depth + d) * t.w.depth_stride);
      for (int64_t j = 0, count = 0; j < t.w.outputs; j += count) {
        const int64_t row = w.row + j, left = block - row % block;
        count = left < t.w.outputs - j ? left : t.w.outputs - j;
        widen_run<V>(codes + j / kPacked<T>, count, scale_at(t.w.scales, row, depth + d) * t.w.factor,
                     widened + d * stride + j);
      }
    }
    pack_paired<C>(widened, stride, size, t.w.outputs, panels);
    for (int64_t j = 0; j < t.w.outputs; ++j) scales[j] = 1;
  }

  /// One panel's products times the scales of its outputs and of the rows, added to what c has.
  static void multiply(int64_t rows, int64_t width, int64_t depth, const Scratch& s, const Real* panel,
                       const Real* scales, Real* c, int64_t ldc, bool first) {
    if constexpr (C::kRowPadding > 0) {
      C::multiply(rows, width, depth, s.operands.rows, Blocks::kStride, panel, 0, s.sums, kPanel<V>, false);
      add_scaled(rows, width, s, scales, c, ldc, first);
    } else {
      const Tiles tiles{s.operands.rows, panel, s.row_scales, scales, c, ldc, depth, rows, first};
      switch ((width + V::kLanes - 1) / V::kLanes) {
        case 1:
          return tiles.template visit<1>();
        case 2:
          return tiles.template visit<2>();
        case 3:
          return tiles.template visit<3>();
        default:
          return tiles.template visit<4>();
      }
    }
  }

  struct Tiles {
    const Real *a, *b, *row_scales, *scales;
    Real* c;
    int64_t ldc, depth, rows;
    bool first;

    template <int kVectors>
    TILEWISE_INLINE void visit() const {
      if constexpr (kVectors <= V::kPanelVectors)
        visit_tiles<C>(rows, [&]<int kRows>(int64_t r) { tile<kRows, kVectors>(r); });
    }

    template <int kRows, int kVectors>
    [[gnu::noinline]] void tile(int64_t row) const {
      F acc[kRows][kVectors];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) acc[r][v] = V::zero();
      accumulate_tile<C>(acc, a + row * Blocks::kStride, Blocks::kStride, b, depth);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const F row_scale = V::set1(row_scales[row + r]);
        Real* to = c + (row + r) * ldc;
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v)
          store_scaled_sum(acc[r][v], row_scale, scales + v * V::kLanes, to + v * V::kLanes, first);
      }
    }
  };

  TILEWISE_INLINE static void store_scaled_sum(F sum, F row_scale, const Real* scales, Real* c, bool first) {
    V::store(c, V::fma(V::mul(sum, row_scale), V::load(scales), first ? V::zero() : V::load(c)));
  }

  static void add_scaled(int64_t rows, int64_t width, const Scratch& s, const Real* scales, Real* c, int64_t ldc,
                         bool first) {
    for (int64_t j = 0; j < width; j += V::kLanes)
      for (int64_t r = 0; r < rows; ++r)
        store_scaled_sum(V::load(s.sums + r * kPanel<V> + j), V::set1(s.row_scales[r]), scales + j, c + r * ldc + j,
                         first);
  }
};

}  // namespace tilewise::backends::cpu
