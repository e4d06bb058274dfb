// Builds the table of one instruction set's products.
#pragma once

#include "backends/cpu/gemm/isa/activation_gradient.h"
#include "backends/cpu/gemm/isa/epilogue.h"
#include "backends/cpu/gemm/isa/outer.h"
#include "backends/cpu/gemm/isa/scaled_panels.h"
#include "backends/cpu/gemm/isa/scaled_streams.h"
#include "backends/cpu/gemm/isa/streams.h"
#include "backends/cpu/isa/compute_real.h"

namespace tilewise::backends::cpu {

/// Products computed by C.
template <class C>
class Gemm {
  using V = typename C::V;
  using Real = typename V::Real;

  /// One of the four kinds, at the same place. A row of products has room for the ups of one run of pairs behind it.
  struct Scratch {
    Arena<V> arena;
    int64_t ldc;
    Real* c;
    Arena<V> kinds[4] = {arena, arena, arena, arena};
    typename PanelProduct<C>::Scratch panels;
    typename ScaledPanelProduct<C>::Scratch scaled_panels;
    StreamScratch<C> stream;
    ScaledStreamScratch<C> scaled_stream;
    size_t bytes;

    TILEWISE_INLINE Scratch(void* base, const GemmShape& s)
        : arena(base),
          ldc(round_up(s.outputs + (s.paired ? s.outputs / 2 : 0), kPanel<V>) + 2 * kPanel<V> + V::kLanes),
          c(arena.reals((s.rows + C::kRowPadding) * ldc)),
          kinds{arena, arena, arena, arena},
          panels(kinds[0], s.outputs),
          scaled_panels(kinds[1], s.outputs),
          stream(kinds[2], s.rows, s.depth),
          scaled_stream(kinds[3], s.rows, s.depth),
          bytes(kinds[2 * int{s.streamed} + int{s.quantized}].used()) {}
  };

 public:
  static size_t scratch_bytes(const GemmShape& shape) { return Scratch(nullptr, shape).bytes; }

  static void run(const GemmTask& t, void* scratch) {
    const int64_t second = round_up(t.w.outputs, kPanel<V>);
    const bool quantized = t.w.element == GemmElement::e4m3 || t.w.element == GemmElement::e2m1;
    const Scratch s(scratch, {t.rows, t.w.outputs * t.w.num_runs, t.depth, t.streamed, quantized, is_paired(t)});
    if (t.depth == 0)
      __builtin_memset(s.c, 0, static_cast<size_t>(t.rows * s.ldc) * sizeof(Real));
    else if (!quantized)
      of_numbers(t, s, second);
    else if constexpr (!kWide<C>)
      of_codes(t, s, second);
    Epilogue<V, C::template precision<float>()>::run(t, s.c, s.ldc, second);
  }

  /// With the rows up to which streaming is faster than packing.
  static constexpr GemmKernel kernel(int64_t stream_rows) {
    using Gradient = ActivationGradient<V, C::template precision<float>()>;
    return {.run = &run,
            .scratch = &scratch_bytes,
            .stream_rows = stream_rows,
            .panel = kPanel<V>,
            .outer = &OuterProduct<C>::run,
            .outer_scratch = &OuterProduct<C>::scratch_bytes,
            .activation = &Gradient::run,
            .activation_scratch = &Gradient::scratch_bytes};
  }

 private:
  static bool is_paired(const GemmTask& t) { return t.gated && t.w.num_runs == 1; }

  static void of_numbers(const GemmTask& t, const Scratch& s, int64_t second) {
    if (!t.streamed) {
      [[maybe_unused]] const typename C::Session session;
      return PanelProduct<C>::run(t, s.panels, s.c, s.ldc, second);
    }
    with_numbers<C>(t.w.element, [&]<class W>(const W*) { StreamProduct<C, W>::run(t, s.stream, s.c, s.ldc, second); });
  }

  static void of_codes(const GemmTask& t, const Scratch& s, int64_t second) {
    if (!t.streamed) {
      [[maybe_unused]] const typename C::Session session;
      return ScaledPanelProduct<C>::run(t, s.scaled_panels, s.c, s.ldc, second);
    }
    if (t.w.element == GemmElement::e4m3)
      ScaledStreamProduct<C, E4m3, 32>::run(t, s.scaled_stream, s.c, s.ldc, second);
    else if (t.w.scales.block_depth == 32)
      ScaledStreamProduct<C, E2m1, 32>::run(t, s.scaled_stream, s.c, s.ldc, second);
    else
      ScaledStreamProduct<C, E2m1, 16>::run(t, s.scaled_stream, s.c, s.ldc, second);
  }
};

}  // namespace tilewise::backends::cpu
