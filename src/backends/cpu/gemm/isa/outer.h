// Gradients of weights: columns of one kind of rows times columns of another, summed up over a group's rows in their
// order.
#pragma once

#include <stdint.h>

#include "backends/cpu/gemm/isa/numbers.h"
#include "backends/cpu/gemm/isa/panels.h"

namespace tilewise::backends::cpu {

template <class C>
class OuterProduct {
  using V = typename C::V;
  using Real = typename V::Real;
  using Blocks = PanelBlocks<C>;
  using Operand = typename GatheredElement<kPairs<C>, Real>::Type;
  static constexpr int64_t kDepth = Blocks::kDepth;  // rows that are gathered at once

  struct Scratch {
    Arena<V> arena;
    int64_t ld_rows, ldc;  // in elements, Reals
    Real *c, *a, *panels, *rows;

    TILEWISE_INLINE Scratch(void* base, int64_t a_columns, int64_t b_columns)
        : arena(base),
          ld_rows(round_up(a_columns > b_columns ? a_columns : b_columns, 64) + 64),
          ldc(round_up(b_columns, kPanel<V>) + kPanel<V>),
          c(arena.reals((a_columns + C::kRowPadding) * ldc)),
          a(arena.reals((round_up(a_columns, V::kLanes * C::kPair) + C::kRowPadding) * Blocks::kStride)),
          panels(arena.reals(round_up(b_columns, kPanel<V>) * Blocks::kUnits)),
          rows(arena.reals(kDepth * ld_rows)) {}
  };

 public:
  static size_t scratch_bytes(int64_t a_columns, int64_t b_columns) {
    return Scratch(nullptr, a_columns, b_columns).arena.used();
  }

  static void run(const OuterTask& t, void* scratch) {
    [[maybe_unused]] const typename C::Session session;
    const Scratch s(scratch, t.a.columns, t.b.columns);
    if (t.rows == 0) __builtin_memset(s.c, 0, static_cast<size_t>(t.a.columns * s.ldc) * sizeof(Real));
    auto* gathered = reinterpret_cast<Operand*>(s.rows);
    for (int64_t row = 0; row < t.rows; row += kDepth) {
      const int64_t size = t.rows - row < kDepth ? t.rows - row : kDepth;
      gather(t.a, row, size, gathered, s.ld_rows);
      pack_flipped<C>(gathered, s.ld_rows, size, t.a.columns, s.a, Blocks::kStride);
      gather(t.b, row, size, gathered, s.ld_rows);
      pack_paired<C>(gathered, s.ld_rows, size, t.b.columns, s.panels);
      C::multiply(t.a.columns, t.b.columns, depth_units<C>(size), s.a, Blocks::kStride, s.panels,
                  depth_units<C>(size) * kPanel<V>, s.c, s.ldc, row > 0);
    }
    for (int64_t i = 0; i < t.a.columns; ++i)
      store_numbers<V>(s.c + i * s.ldc, t.b.columns, 1, t.out, t.out_element, i * t.out_stride);
  }

 private:
  /// Rows times their factors, one after another.
  static void gather(const OuterRows& from, int64_t row, int64_t count, Operand* to, int64_t stride) {
    with_numbers<C>(from.element, [&]<class T>(const T*) {
      for (int64_t r = row; r < row + count; ++r, to += stride) {
        const T* data = static_cast<const T*>(from.data) + (from.index ? from.index[r] : r) * from.stride;
        copy(data, from.columns, from.factor, r, to);
      }
    });
  }

  template <class T>
  static void copy(const T* from, int64_t count, const void* factors, int64_t row, Operand* to) {
    if constexpr (__is_same(T, Operand))
      if (!factors) return static_cast<void>(__builtin_memcpy(to, from, static_cast<size_t>(count) * sizeof(T)));
    load_scaled<V>(from, count, factors ? static_cast<const Real*>(factors)[row] : 1, to);
  }
};

}  // namespace tilewise::backends::cpu
