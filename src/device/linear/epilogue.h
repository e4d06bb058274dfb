// From sums of products to out: scales, bias, activation or its derivative, one rounding.
#pragma once

#include "device/linear/config.h"
#include "device/linear/params.h"
#include "device/product/epilogue.h"
#include "device/product/groups.h"
#include "device/tile/activation_slope.h"
#include "device/tile/element.h"
#include "device/tile/fragment.h"

namespace tilewise::device {

/// What a block of the grid works on.
struct LinearPlace {
  int32_t m_tile, n_tile, split;
};

/// Blocks that share rows of weights, or of x, are near each other: stripes of kStripe tiles of rows.
template <class Machine>
TILEWISE_INLINE LinearPlace linear_place(const LinearGrid& grid) {
  constexpr int32_t kStripe = 8;
  const int32_t tiles = grid.m_tiles * grid.n_tiles, block = Machine::block();
  const int32_t split = block / tiles, tile = block - split * tiles;
  const int32_t stripe = tile / (kStripe * grid.n_tiles), first = stripe * kStripe;
  const int32_t height = minimum(grid.m_tiles - first, kStripe), rest = tile - first * grid.n_tiles;
  return {uniform<Machine>(first + rest % height), uniform<Machine>(rest / height), uniform<Machine>(split)};
}

/// The rows and columns of one tile: what is common to all of its sums.
template <class Machine, auto C>
class LinearEpilogue {
  static constexpr auto kActivation = static_cast<ActivationKind>(C.activation);
  static constexpr ActivationClamp kClamp = ActivationClamp::none;

 public:
  TILEWISE_INLINE LinearEpilogue(const LinearEpilogueParams& params, const GroupRows& rows, int64_t first_col)
      : p_(params), rows_(rows), first_col_(first_col) {
    if constexpr (C.expert_scale) {
      if (rows.group >= 0) expert_scale_ = factor(p_.expert_scale, 0);
    }
  }

  /// Sums of kRun adjacent columns of a row of the tile, to out.
  template <int kRun>
  TILEWISE_INLINE void write(int row, int col, FloatRun<kRun> run) const {
    const int64_t column = first_col_ + col, left = p_.columns - column;
    if (row >= rows_.rows || left <= 0) return;
    const float scale = row_factor(row);
    TILEWISE_UNROLL
    for (int i = 0; i < kRun; ++i)
      run.value[i] = result(run.value[i] * scale, row, column + minimum(int64_t{i}, left - 1));
    store(row, col, run);
  }

  /// The same of sums that are kept for later.
  template <int kRun>
  TILEWISE_INLINE void keep(int32_t split, int row, int col, const FloatRun<kRun>& run) const {
    const int64_t column = first_col_ + col;
    if (row >= rows_.rows) return;
    store_run<Machine, kNumberF32, C.vector_out != 0>(p_.partial, partial_index(split, row, column),
                                                      p_.columns - column, run);
  }
  /// All parts' sums, added up in their order.
  template <int kRun>
  TILEWISE_INLINE FloatRun<kRun> kept(int row, int col) const {
    const int64_t column = first_col_ + col;
    FloatRun<kRun> sum{};
    for (int32_t split = 0; split < p_.grid.splits; ++split) {
      TILEWISE_UNROLL
      for (int i = 0; i < kRun; ++i) {
        if (row < rows_.rows && column + i < p_.columns)
          sum.value[i] += Machine::load_global(p_.partial + partial_index(split, row, column + i));
      }
    }
    return sum;
  }

  /// Zeros in rows of no group.
  template <int kRun>
  TILEWISE_INLINE void clear(int row, int col) const {
    if (row < rows_.rows) store(row, col, FloatRun<kRun>{});
  }

 private:
  TILEWISE_INLINE int64_t partial_index(int32_t split, int row, int64_t column) const {
    return (split * p_.rows + rows_.first + row) * p_.columns + column;
  }
  TILEWISE_INLINE float factor(const ProductVector& of, int64_t index) const {
    return Machine::load_global(static_cast<const float*>(of.data) + rows_.group * of.expert_stride +
                                index * of.stride);
  }
  TILEWISE_INLINE float row_factor(int row) const {
    float scale = C.expert_scale ? expert_scale_ : 1.0f;
    if constexpr (C.row_scale)
      scale *= Machine::load_global(static_cast<const float*>(p_.row_scale.data) +
                                    (rows_.first + row) * p_.row_scale.stride);
    return scale;
  }

  TILEWISE_INLINE float result(float sum, int row, int64_t column) const {
    if constexpr (C.column_scale) sum *= factor(p_.column_scale, column);
    if constexpr (C.bias_type != kBiasNone) {
      constexpr int kType = C.bias_type == kBiasF32 ? kNumberF32 : C.bias_type == kBiasBf16 ? kNumberBf16 : kNumberF16;
      sum += load_number<Machine, kType>(p_.bias.data, rows_.group * p_.bias.expert_stride + column * p_.bias.stride);
    }
    if constexpr (C.gradient) {
      const float dout =
          load_number<Machine, C.dout_type>(p_.dout.data, (rows_.first + row) * p_.dout.row_stride + column);
      return dout * clamped_slope<Machine, kActivation, kClamp>(sum, p_.numbers).derivative;
    } else {
      return activate_clamped<Machine, kActivation, kClamp>(sum, p_.numbers);
    }
  }

  template <int kRun>
  TILEWISE_INLINE void store(int row, int col, const FloatRun<kRun>& run) const {
    const int64_t column = first_col_ + col;
    store_run<Machine, C.out_type, C.vector_out != 0>(p_.out.data, (rows_.first + row) * p_.out.row_stride + column,
                                                      p_.columns - column, run);
  }

  const LinearEpilogueParams& p_;
  const GroupRows& rows_;
  int64_t first_col_;
  float expert_scale_ = 1.0f;
};

}  // namespace tilewise::device
