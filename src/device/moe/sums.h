// Sums of a tile of an expert's rows on their way to what follows: tiles, factors, biases, and gates beside what they
// gate.
#pragma once

#include "device/moe/config.h"
#include "device/moe/params.h"
#include "device/product/epilogue.h"
#include "device/product/groups.h"
#include "device/product/product_of.h"

namespace tilewise::device {

/// A block's tile: rows of one expert, of which there may be none, and a stretch of columns.
struct ExpertTile {
  GroupRows rows;
  int32_t n_tile;
  TILEWISE_INLINE bool is_empty() const { return rows.group < 0 || rows.rows <= 0; }
};
template <class Machine>
TILEWISE_INLINE ProductGroups groups_of(const MoeShape& shape, const RoutedRows& routed) {
  return {routed.offsets, 1, shape.num_experts, 4, kGroupsOffsets, 0};
}
/// Blocks that share rows of weights are neighbours.
template <class Machine>
TILEWISE_INLINE ExpertTile expert_tile(const MoeShape& shape, const RoutedRows& routed, int32_t n_tiles,
                                       int32_t block_m) {
  const int32_t block = Machine::block(), m_tile = block / n_tiles;
  const ProductGroups groups = groups_of<Machine>(shape, routed);
  return {Groups<Machine, kGroupsOffsets>(groups, shape.pairs()).tile(uniform<Machine>(m_tile), block_m),
          uniform<Machine>(block - m_tile * n_tiles)};
}

/// Number of BiasType kType.
template <class Machine, int kType>
TILEWISE_INLINE float load_bias(const ProductVector& of, int64_t expert, int64_t index) {
  constexpr int kNumber = kType == kBiasF32 ? kNumberF32 : kType == kBiasBf16 ? kNumberBf16 : kNumberF16;
  return load_number<Machine, kNumber>(of.data, expert * of.expert_stride + index * of.stride);
}

/// What becomes of the sums of one tile.
template <class Machine, auto C>
class ExpertFactors {
 public:
  TILEWISE_INLINE ExpertFactors(const ExpertSums& sums, const RoutedRows& routed, const GroupRows& rows)
      : s_(sums), routed_(routed), rows_(rows) {
    if constexpr (C.expert_scale) scale_ = factor(s_.expert_scale, rows.group, 0);
  }

  /// The topk_weight of a row of the tile.
  TILEWISE_INLINE float weight(int row) const { return Machine::load_global(routed_.weights + rows_.first + row); }

  /// Of all sums of a row. kGathered: the row's scale is its token's.
  template <bool kGathered>
  TILEWISE_INLINE float of_row(int row) const {
    if constexpr (!C.row_scale) return scale_;
    int64_t index = rows_.first + row;
    if constexpr (kGathered) index = Machine::load_global(routed_.tokens + index);
    return scale_ * factor(s_.row_scale, 0, index);
  }
  TILEWISE_INLINE float of_column(int64_t column) const {
    if constexpr (!C.column_scale) return 1.0f;
    return factor(s_.column_scale, rows_.group, column);
  }
  TILEWISE_INLINE float bias(int64_t column) const {
    if constexpr (C.bias_type == kBiasNone) {
      return 0.0f;
    } else {
      return load_bias<Machine, C.bias_type>(s_.bias, rows_.group, column);
    }
  }

 private:
  TILEWISE_INLINE static float factor(const ProductVector& of, int64_t expert, int64_t index) {
    return Machine::load_global(static_cast<const float*>(of.data) + expert * of.expert_stride + index * of.stride);
  }

  const ExpertSums& s_;
  const RoutedRows& routed_;
  const GroupRows& rows_;
  float scale_ = 1.0f;
};

/// visit(row, first value, gates, ups): sums of adjacent intermediate values of a block whose columns are rows of
/// gate_up; without a gate both are the same. Lanes that hold a gate whose up is another lane's get that.
template <class Ops, GateLayout kLayout, class Sums, class Visit>
TILEWISE_INLINE void for_each_gated(const Sums& sums, const Visit& visit) {
  constexpr int kRun = Sums::kRun;
  if constexpr (kLayout == GateLayout::none) {
    sums.for_each_run([&](int row, int col, const FloatRun<kRun>& run) { visit(row, col, run, run); });
  } else if constexpr (kLayout == GateLayout::concatenated) {
    sums.for_each_run_of_halves(visit);
  } else if constexpr (kRun > 1) {
    sums.for_each_run([&](int row, int col, const FloatRun<kRun>& run) {
      FloatRun<kRun / 2> gate, up;
      TILEWISE_UNROLL
      for (int i = 0; i < kRun / 2; ++i) gate.value[i] = run.value[2 * i], up.value[i] = run.value[2 * i + 1];
      visit(row, col / 2, gate, up);
    });
  } else {
    // Lanes that share a row have every second column each.
    sums.for_each_run([&](int row, int col, const FloatRun<1>& gate) {
      const FloatRun<1> up{{Ops::Machine::shuffle_xor(gate.value[0], Ops::FragmentLayout::kRowMask)}};
      if (col % 2 == 0) visit(row, col / 2, gate, up);
    });
  }
}

}  // namespace tilewise::device
