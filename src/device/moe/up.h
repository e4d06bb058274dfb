// The first half of an expert layer: rows of x, gathered by expert, times gate_up, and activated. In the backward pass
// the same sums are made again: their gradients leave instead, and the terms of topk_weights' gradients.
#pragma once

#include "device/moe/sums.h"
#include "device/tile/activation_slope.h"

namespace tilewise::device {

/// Where a tile's sums go, of kRun adjacent intermediate values each.
template <class Machine, auto C>
class ExpertUpResults {
  static constexpr auto kKind = static_cast<ActivationKind>(C.activation);
  static constexpr auto kClamp = static_cast<ActivationClamp>(C.clamp);
  static constexpr GateLayout kLayout = C.layout();

 public:
  TILEWISE_INLINE ExpertUpResults(const ExpertUpParams& params, const ExpertTile& tile)
      : p_(params),
        rows_(tile.rows),
        first_(int64_t{tile.n_tile} * C.values()),
        factors_(params.sums, params.routed, tile.rows) {}

  template <int kRun>
  TILEWISE_INLINE void write(int row, int value, FloatRun<kRun> gate, FloatRun<kRun> up) const {
    const int64_t first = first_ + value, left = p_.shape.intermediate - first;
    if (row >= rows_.rows || left <= 0) return;
    const float scale = factors_.template of_row<true>(row);
    float weight = 1.0f;
    if constexpr (C.gradient || C.weighs) weight = factors_.weight(row);
    if constexpr (C.gradient) {
      write_gradients(row, first, left, scale, weight, gate, up);
    } else {
      FloatRun<kRun> h;
      TILEWISE_UNROLL
      for (int i = 0; i < kRun; ++i) {
        const int64_t at = first + minimum(int64_t{i}, left - 1);
        const float upper = with_bias(up.value[i] * scale, weight, up_row(at));
        if constexpr (kLayout == GateLayout::none) {
          h.value[i] = activate_clamped<Machine, kKind, kClamp>(upper, p_.numbers);
        } else {
          const float gates = with_bias(gate.value[i] * scale, weight, gate_row(at));
          h.value[i] = activate_gated<Machine, kKind, kClamp>(gates, upper, p_.numbers);
        }
      }
      store_run<Machine, C.h_type, C.vector_h != 0>(p_.h, row_of(row) * p_.shape.intermediate + first, left, h);
    }
  }

 private:
  TILEWISE_INLINE int64_t row_of(int row) const { return rows_.first + row; }
  /// Rows of gate_up.
  TILEWISE_INLINE static int64_t gate_row(int64_t i) { return kLayout == GateLayout::interleaved ? 2 * i : i; }
  TILEWISE_INLINE int64_t up_row(int64_t i) const {
    if constexpr (kLayout == GateLayout::none) return i;
    return kLayout == GateLayout::interleaved ? 2 * i + 1 : p_.shape.intermediate + i;
  }

  TILEWISE_INLINE float scaled(float sum, int64_t column) const {
    if constexpr (C.column_scale) return sum * factors_.of_column(column);
    return sum;
  }
  TILEWISE_INLINE float with_bias(float sum, float weight, int64_t column) const {
    sum = scaled(sum, column);
    if constexpr (C.weighs) sum *= weight;
    if constexpr (C.bias_type != kBiasNone) sum += factors_.bias(column);
    return sum;
  }

  /// Of rows of gate_up without their bias, rounded once, and h as the forward pass has it. dh holds the gradient of h
  /// before its weight, and gets what the gradient of the weight is the sum of.
  template <int kRun>
  TILEWISE_INLINE void write_gradients(int row, int64_t first, int64_t left, float scale, float weight,
                                       const FloatRun<kRun>& gate, const FloatRun<kRun>& up) const {
    float* const dh = p_.dh + row_of(row) * p_.shape.intermediate;
    FloatRun<kRun> h, dgate, dup;
    TILEWISE_UNROLL
    for (int i = 0; i < kRun; ++i) {
      const int64_t at = first + minimum(int64_t{i}, left - 1);
      const float own = Machine::load_global(dh + at), weighed = C.weighs ? own : own * weight;
      const float up_sum = scaled(up.value[i] * scale, up_row(at)),
                  upper = with_bias(up.value[i] * scale, weight, up_row(at));
      float gates = 0.0f, gate_sum = 0.0f;
      if constexpr (kLayout != GateLayout::none) {
        gate_sum = scaled(gate.value[i] * scale, gate_row(at));
        gates = with_bias(gate.value[i] * scale, weight, gate_row(at));
      }
      const ValueSlopes slopes =
          value_slopes<Machine, kKind, kClamp, kLayout != GateLayout::none>(gates, upper, weighed, p_.numbers);
      h.value[i] = slopes.value, dgate.value[i] = slopes.dgate, dup.value[i] = slopes.dup;
      const float term = slopes.dgate * gate_sum + slopes.dup * up_sum;
      if (i < left) Machine::store_global(dh + at, C.weighs ? term : own * h.value[i]);
    }
    store_run<Machine, C.h_type, C.vector_h != 0>(p_.h, row_of(row) * p_.shape.intermediate + first, left, h);
    store_products(row, first, left, dgate, dup);
  }

  template <int kRun>
  TILEWISE_INLINE void store_products(int row, int64_t first, int64_t left, const FloatRun<kRun>& dgate,
                                      const FloatRun<kRun>& dup) const {
    const int64_t start = row_of(row) * p_.gate_up_rows;
    if constexpr (kLayout == GateLayout::interleaved) {
      FloatRun<2 * kRun> both;
      TILEWISE_UNROLL
      for (int i = 0; i < kRun; ++i) both.value[2 * i] = dgate.value[i], both.value[2 * i + 1] = dup.value[i];
      store_run<Machine, C.h_type, C.vector_h != 0>(p_.dproducts, start + 2 * first, 2 * left, both);
    } else {
      if constexpr (kLayout == GateLayout::concatenated)
        store_run<Machine, C.h_type, C.vector_h != 0>(p_.dproducts, start + first, left, dgate);
      store_run<Machine, C.h_type, C.vector_h != 0>(p_.dproducts, start + up_row(first), left, dup);
    }
  }

  const ExpertUpParams& p_;
  const GroupRows& rows_;
  int64_t first_;
  ExpertFactors<Machine, C> factors_;
};

template <TileOps Ops, auto C>
class ExpertUp {
  using Machine = typename Ops::Machine;
  static constexpr ProductConfig kProduct = C;
  using Multiply = ProductOf<Ops, kProduct>;
  using Sums = typename Multiply::Sums;
  static constexpr GateLayout kLayout = C.layout();
  static_assert((kLayout == GateLayout::concatenated) == (C.b.halves != 0), "halves are gates and ups");

 public:
  using Params = ExpertUpParams;
  using Shared = typename Multiply::Shared;

  TILEWISE_INLINE static void run(const Params& p, Shared& shared) {
    const ExpertTile tile = expert_tile<Machine>(p.shape, p.routed, p.n_tiles, C.block_m);
    if (tile.is_empty()) return;
    const OperandRows x = operand_rows<C.a>(p.a, 0, tile.rows.first, tile.rows.rows, p.routed.tokens);
    constexpr int32_t kRows = kLayout == GateLayout::concatenated ? C.block_n / 2 : C.block_n;
    const int64_t first = int64_t{tile.n_tile} * kRows, all = C.b.halves != 0 ? p.shape.intermediate : p.gate_up_rows;
    OperandRows gate_up =
        operand_rows<C.b>(p.b, tile.rows.group, first, static_cast<int32_t>(minimum(all - first, int64_t{kRows})));
    gate_up.half_stride = p.shape.intermediate;
    Sums sums(Machine::wave());
    sums.clear();
    Multiply::run(shared, x, gate_up, 0, p.shape.hidden, sums);
    const ExpertUpResults<Machine, C> results(p, tile);
    for_each_gated<Ops, kLayout>(
        sums, [&](int row, int value, const auto& gate, const auto& up) { results.write(row, value, gate, up); });
  }
};

}  // namespace tilewise::device
