// Many rows: a block of weights is packed in panels, which then pass by all rows of the task.
#pragma once

#include <stdint.h>

#include "backends/cpu/gemm/isa/codes.h"
#include "backends/cpu/isa/arena.h"

namespace tilewise::backends::cpu {

/// Blocks of the depth and of rows.
template <class C>
struct PanelBlocks {
  using V = typename C::V;
  static constexpr int64_t kPanelBytes = 32 * 1024;  // of weights that stay in the first-level cache
  static constexpr int64_t kFitting = kPanelBytes / int64_t{kPanel<V> * sizeof(typename V::Real)};
  // AMX keeps half a panel there, and has results come and go at each block's end.
  static constexpr int64_t kUnits = C::kDepthUnits > 1 ? 256 : kFitting < 256 ? kFitting : 256;
  static constexpr int64_t kDepth = kUnits * C::kPair;        // elements of a block
  static constexpr int64_t kRows = 96;                        // packed at once: whole register tiles of every set
  static constexpr int64_t kStride = kUnits + 2 * V::kLanes;  // of packed rows, no power of two
  static_assert(kDepth % 128 == 0 && kDepth <= kWidened);
};

template <class C>
class PanelProduct {
  using V = typename C::V;
  using Real = typename V::Real;
  using Blocks = PanelBlocks<C>;

 public:
  struct Scratch {
    Real *rows, *panels;
    TILEWISE_INLINE Scratch(Arena<V>& arena, int64_t outputs)
        : rows(arena.reals((Blocks::kRows + C::kRowPadding) * Blocks::kStride)),
          panels(arena.reals((outputs + 2 * int64_t{kPanel<V>}) * Blocks::kUnits)) {}
  };

  /// c[row][run * second + output]; rows are padded by C::kRowPadding.
  static void run(const GemmTask& t, const Scratch& s, Real* c, int64_t ldc, int64_t second) {
    for (int64_t depth = 0; depth < t.depth; depth += Blocks::kDepth) {
      const int64_t size = t.depth - depth < Blocks::kDepth ? t.depth - depth : Blocks::kDepth;
      const int64_t units = depth_units<C>(size);
      for (int32_t i = 0; i < t.w.num_runs; ++i) pack(t, i, depth, size, s.panels + i * second * units);
      for (int64_t row = 0; row < t.rows; row += Blocks::kRows) {
        const int64_t rows = t.rows - row < Blocks::kRows ? t.rows - row : Blocks::kRows;
        pack_rows<C>(t, row, rows, depth, size, s.rows, Blocks::kStride);
        multiply(t, s, row, rows, depth, size, c + row * ldc, ldc, second);
      }
    }
  }

 private:
  /// Panel by panel, while the rows come that are packed next.
  static void multiply(const GemmTask& t, const Scratch& s, int64_t row, int64_t rows, int64_t depth, int64_t size,
                       Real* c, int64_t ldc, int64_t second) {
    const int64_t units = depth_units<C>(size), panels = t.w.num_runs * ((t.w.outputs + kPanel<V> - 1) / kPanel<V>);
    const bool last = row + rows == t.rows;
    const int64_t next_depth = last ? depth + size : depth, step = (Blocks::kRows + panels - 1) / panels;
    int64_t next = last ? 0 : row + rows;
    for (int32_t i = 0; i < t.w.num_runs; ++i) {
      const Real* panel = s.panels + i * second * units;
      for (int64_t j = 0; j < t.w.outputs; j += kPanel<V>, panel += units * kPanel<V>) {
        const int64_t width = t.w.outputs - j < kPanel<V> ? t.w.outputs - j : int64_t{kPanel<V>};
        Real* sums = c + i * second + j;
        if (kRequestsRows) request_rows(t, next, step, next_depth), next += step;
        if (kRequestsSums && depth > 0 && j + kPanel<V> < t.w.outputs)
          for (int64_t r = 0; r < rows; ++r) __builtin_prefetch(sums + r * ldc + kPanel<V>, 1, 3);
        C::multiply(rows, width, units, s.rows, Blocks::kStride, panel, 0, sums, ldc, depth > 0);
      }
    }
  }

  // Of 512 rows and 256 outputs sums leave the second-level cache, and loads of a tile's sums or of short pieces of
  // rows wait for the third: a twentieth of the time on Zen 3. Sets of pairs, whose rows are half as long, are left
  // alone.
  static constexpr bool kRequestsRows = !kPairs<C>;
  static constexpr bool kRequestsSums = !kPairs<C> && kPanel<V> * int64_t{sizeof(Real)} <= 64;  // a line of each row
  TILEWISE_INLINE static void request_rows(const GemmTask& t, int64_t row, int64_t count, int64_t depth) {
    const int64_t size = t.depth - depth < Blocks::kDepth ? t.depth - depth : Blocks::kDepth;
    if (size <= 0) return;
    with_numbers<C>(t.x_element, [&]<class X>(const X*) {
      for (int64_t r = row; r < row + count && r < t.rows; ++r)
        request(row_of<X>(t, r) + depth, size * int64_t{sizeof(X)});
    });
  }

  /// Has the next block's weights come while this one is multiplied.
  template <class W>
  TILEWISE_INLINE static void request_next(const GemmTask& t, const W* from, int64_t next) {
    const int64_t size = t.depth - next < Blocks::kDepth ? t.depth - next : Blocks::kDepth;
    if (size <= 0) return;
    const W* to = from + Blocks::kDepth * t.w.depth_stride;
    const bool by_depth = t.w.depth_stride == 1;
    const int64_t rows = by_depth ? t.w.outputs : size, bytes = (by_depth ? size : t.w.outputs) * int64_t{sizeof(W)};
    for (int64_t r = 0; r < rows; ++r) request(to + r * (by_depth ? t.w.output_stride : t.w.depth_stride), bytes);
  }

  TILEWISE_INLINE static void pack(const GemmTask& t, int32_t run, int64_t depth, int64_t size, Real* panels) {
    with_numbers<C>(t.w.element, [&]<class W>(const W*) {
      const W* from = static_cast<const W*>(t.w.runs[run].data) + depth * t.w.depth_stride;
      request_next(t, from, depth + size);
      if (t.w.depth_stride == 1)
        pack_transposed<C>(from, t.w.output_stride, t.w.outputs, size, panels);
      else
        pack_paired<C>(from, t.w.depth_stride, size, t.w.outputs, panels);
    });
  }
};

}  // namespace tilewise::backends::cpu
