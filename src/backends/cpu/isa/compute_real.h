// Products of operands in the vectors' own Reals, whatever the element type of the tensors: one unit is one Real.
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/math.h"
#include "backends/cpu/isa/pack.h"

namespace tilewise::backends::cpu {

template <class Simd>
struct ComputeReal {
  using V = Simd;
  using F = typename V::F;
  using Real = typename V::Real;
  static constexpr int kPair = 1;
  static constexpr int kKeyVectors = 1, kValueVectors = 1;  // that decoding loads at once
  static constexpr int kDepthUnits = 1;
  static constexpr int kRowPadding = 0;
  static constexpr int64_t kForwardKeys = 128;
  static constexpr int64_t kForwardRows = 4 * V::kTileRows;
  static constexpr int64_t kBackwardKeys = 256;
  static constexpr int64_t kBackwardRows = 16 * V::kTileRows;
  static constexpr int32_t kMaxRows = 256;

  /// What a task holds while it multiplies; nothing here (compare compute_amx.h).
  struct Session {};

  template <class In>
  static constexpr Precision precision() {
    return sizeof(In) == 2 ? Precision::low : best_precision<V>();
  }
  /// Whether decoding reads keys and values in fp8 beside queries in In: widened to fp32, as these are.
  template <class In>
  static constexpr bool decodes_fp8() {
    return sizeof(In) == sizeof(float) && sizeof(Real) == sizeof(float);
  }

  TILEWISE_INLINE static F dot(F sum, F a, F b) { return V::fma(a, b, sum); }

  static void multiply(int64_t rows, int64_t columns, int64_t depth, const Real* a, int64_t lda, const Real* b,
                       int64_t panel_stride, Real* c, int64_t ldc, bool accumulate) {
    cpu::multiply<ComputeReal>(rows, columns, depth, a, lda, b, panel_stride, c, ldc, accumulate);
  }

  template <class In>
  TILEWISE_INLINE static F load_units(const In* p) {
    return V::load(p);
  }

  /// One vector of a row, whose end is not asked for where every vector is whole.
  template <bool kWhole, class In>
  TILEWISE_INLINE static void load_key(F (&out)[kKeyVectors], const In* row, int64_t begin, int64_t size) {
    out[0] = kWhole ? load_units(row + begin) : cpu::load_units<ComputeReal>(row, begin, size);
  }
  TILEWISE_INLINE static void order_depth(Real*) {}

  /// One row's elements [begin, begin + kLanes): columns of a B operand.
  template <class In>
  TILEWISE_INLINE static void load_paired(F (&out)[kPair], const In* row, int64_t, int64_t rows_left, int64_t begin,
                                          int64_t size) {
    out[0] = rows_left > 0 ? cpu::load_units<ComputeReal>(row, begin, size) : V::zero();
  }

  /// compute_bf16.h's cheaper order of columns; here there is but one, and one row.
  template <class In>
  TILEWISE_INLINE static void load_shuffled(F (&out)[kPair], const In* row, const In*, int64_t begin, int64_t size) {
    out[0] = cpu::load_units<ComputeReal>(row, begin, size);
  }
  TILEWISE_INLINE static void order_row(Real*) {}

  /// Columns [j, j + kLanes) of one depth row of a B operand, from Reals; null: zeros.
  TILEWISE_INLINE static void pair_columns(F (&out)[kPair], const Real* row, const Real*) {
    out[0] = row ? V::load(row) : V::zero();
  }

  /// Columns [j, j + 2 kLanes) of an A operand's row.
  TILEWISE_INLINE static void store_row(Real* row, int64_t j, F x0, F x1) {
    V::store(row + j, x0);
    V::store(row + j + V::kLanes, x1);
  }

  TILEWISE_INLINE static void keep_row(Real* units, const uint16_t* draws, uint32_t threshold) {
    V::store(units, V::select(V::at_least_u16(draws, threshold), V::load(units), V::zero()));
  }
};

}  // namespace tilewise::backends::cpu
