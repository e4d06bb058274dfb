// Builds the table of one instruction set's products.
#pragma once

#include "backends/cpu/gemm/isa/epilogue.h"
#include "backends/cpu/gemm/isa/panels.h"
#include "backends/cpu/gemm/isa/streams.h"
#include "backends/cpu/isa/compute_real.h"

namespace tilewise::backends::cpu {

/// Rows and weights in In, computed by C.
template <class C, class In>
class Gemm {
  using V = typename C::V;
  using Real = typename V::Real;

  /// One of the two kinds, at the same place. A row of products has room for the ups of one run of pairs behind it.
  struct Scratch {
    Arena<V> arena;
    int64_t ldc;
    Real* c;
    Arena<V> other = arena;
    typename PanelProduct<C, In>::Scratch panels;
    typename StreamProduct<C, In>::Scratch stream;
    size_t bytes;

    TILEWISE_INLINE Scratch(void* base, int64_t rows, int64_t outputs, int64_t depth, bool streamed)
        : arena(base),
          ldc(round_up(outputs + outputs / 2, kPanel<V>) + 2 * kPanel<V>),
          c(arena.reals((rows + C::kRowPadding) * ldc)),
          other(arena),
          panels(arena, streamed ? 0 : outputs),
          stream(other, streamed ? rows : 0, depth),
          bytes(streamed ? other.used() : arena.used()) {}
  };

 public:
  static size_t scratch_bytes(int64_t rows, int64_t outputs, int64_t depth, bool streamed) {
    return Scratch(nullptr, rows, outputs, depth, streamed).bytes;
  }

  static void run(const GemmTask& t, void* scratch) {
    const int64_t second = round_up(t.w.outputs, kPanel<V>);
    const Scratch s(scratch, t.rows, t.w.outputs * t.w.num_runs, t.depth, t.streamed);
    if (t.depth == 0)
      __builtin_memset(s.c, 0, static_cast<size_t>(t.rows * s.ldc) * sizeof(Real));
    else if (t.streamed)
      StreamProduct<C, In>::run(t, s.stream, s.c, s.ldc, second);
    else
      by_panels(t, s, second);
    Epilogue<V, C::template precision<In>()>::run(t, s.c, s.ldc, second);
  }

  static constexpr void add_to(GemmKernels& set, ElementIndex element, int64_t stream_rows) {
    set.run[element] = &run;
    set.scratch[element] = &scratch_bytes;
    set.stream_rows[element] = stream_rows;
    set.panel[element] = kPanel<V>;
  }

 private:
  static void by_panels(const GemmTask& t, const Scratch& s, int64_t second) {
    [[maybe_unused]] const typename C::Session session;
    PanelProduct<C, In>::run(t, s.panels, s.c, s.ldc, second);
  }
};

/// An element type left to another instruction set.
struct NoGemm {
  static constexpr void add_to(GemmKernels&, ElementIndex, int64_t) {}
};

/// With the rows up to which streaming is faster than packing.
template <class F32, class Bfloat16, class Float16, class F64>
consteval GemmKernels make_gemm_kernels(int64_t stream_rows) {
  GemmKernels set{};
  F32::add_to(set, kElementF32, stream_rows);
  Bfloat16::add_to(set, kElementBf16, stream_rows);
  Float16::add_to(set, kElementF16, stream_rows);
  F64::add_to(set, kElementF64, stream_rows);
  return set;
}

}  // namespace tilewise::backends::cpu
