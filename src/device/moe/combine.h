// The last steps of a layer: parts that are normalised, and a token's parts summed in fp32 in the order of its slots
// and rounded once.
#pragma once

#include "device/moe/config.h"
#include "device/moe/ids.h"
#include "device/moe/params.h"
#include "device/product/epilogue.h"
#include "device/tile/columns.h"
#include "device/tile/contract.h"

namespace tilewise::device {

/// Of all lanes, in the same order every time.
template <class Machine>
TILEWISE_INLINE float sum_over_lanes(float value) {
  TILEWISE_UNROLL
  for (int bit = 1; bit < Machine::kLanes; bit *= 2) value += Machine::shuffle_xor(value, bit);
  return value;
}

/// A wave has a row, and sums squares of numbers below 2, since those of any numbers leave the range of fp32: factors
/// are what these are divided by, and the row's weight over the root of the mean of such squares plus epsilon.
template <TileOps Ops, auto C>
class ExpertNorm {
  using Machine = typename Ops::Machine;

 public:
  using Params = ExpertNormParams;
  using Shared = NoShared;

  TILEWISE_INLINE static void run(const Params& p, Shared&) {
    const int32_t row = Machine::block() * C.waves + Machine::wave();
    if (row >= Machine::load_global(p.routed.offsets + p.shape.num_experts)) return;
    const float* const part = p.parts + int64_t{row} * p.shape.hidden;
    float greatest = 0.0f;
    for_each(p, part, [&](float x) { greatest = higher(greatest, magnitude(x)); });
    TILEWISE_UNROLL
    for (int bit = 1; bit < Machine::kLanes; bit *= 2) greatest = higher(greatest, Machine::shuffle_xor(greatest, bit));
    const float root_epsilon = square_root(p.epsilon), unit = power_of_two_at(higher(greatest, root_epsilon));
    float squares = 0.0f;
    for_each(p, part, [&](float x) {
      const float scaled = x / unit;
      squares += scaled * scaled;
    });
    squares = sum_over_lanes<Machine>(squares) / static_cast<float>(p.shape.hidden);
    const float small = root_epsilon / unit, root = square_root(squares + small * small);
    const float weight = p.weighs ? Machine::load_global(p.routed.weights + row) : 1.0f;
    if (Machine::lane() == 0) {
      Machine::store_global(p.factors + 2 * int64_t{row}, unit);
      Machine::store_global(p.factors + 2 * int64_t{row} + 1, weight / root);
    }
  }

 private:
  template <class Visit>
  TILEWISE_INLINE static void for_each(const Params& p, const float* part, const Visit& visit) {
    for (int32_t n = Machine::lane(); n < p.shape.hidden; n += Machine::kLanes) visit(Machine::load_global(part + n));
  }
  /// The power of two that is no greater than a number that is normal, of infinity the last one; else the number.
  TILEWISE_INLINE static float power_of_two_at(float x) {
    if (x == kInfinity) return 0x1p127f;
    return x < kLeastNormal ? x : __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, x) & 0x7F800000u);
  }
};

/// A lane has 8 columns of a token at a time.
template <TileOps Ops, auto C>
class ExpertCombine {
  using Machine = typename Ops::Machine;
  static constexpr bool kVector = C.vector_rows != 0, kNorm = C.norm_type != kBiasNone;

 public:
  using Params = ExpertCombineParams;
  using Shared = NoShared;

  TILEWISE_INLINE static void run(const Params& p, Shared&) {
    const int32_t runs = ceil_div(p.shape.hidden, kLaneColumns);
    const int64_t unit = int64_t{Machine::block()} * (C.waves * Machine::kLanes) + Machine::thread();
    const auto token = static_cast<int32_t>(unit / runs);
    const int32_t column = static_cast<int32_t>(unit - int64_t{token} * runs) * kLaneColumns;
    if (unit >= int64_t{p.shape.tokens} * runs) return;
    float sum[kLaneColumns] = {};
    for (int32_t slot = 0; slot < p.shape.top_k; ++slot) {
      const int32_t row = Machine::load_global(p.routed.rows + int64_t{token} * p.shape.top_k + slot);
      if (row == kNobody) continue;
      float part[kLaneColumns];
      load_columns<Machine, kVector, C.part_type>(part, p.parts, int64_t{row} * p.shape.hidden, column, p.shape.hidden);
      if constexpr (kNorm) normalise(p, token, slot, row, column, part);
      TILEWISE_UNROLL
      for (int i = 0; i < kLaneColumns; ++i) sum[i] += part[i];
    }
    store_columns<Machine, kVector, C.out_type>(sum, p.out, token * p.out_stride, column, p.shape.hidden);
  }

 private:
  TILEWISE_INLINE static void normalise(const Params& p, int32_t token, int32_t slot, int32_t row, int32_t column,
                                        float (&part)[kLaneColumns]) {
    const int32_t expert = load_expert<Machine>(p.shape, p.topk_ids, token, slot);
    const float unit = Machine::load_global(p.factors + 2 * int64_t{row});
    const float factor = Machine::load_global(p.factors + 2 * int64_t{row} + 1);
    constexpr int kType = C.norm_type == kBiasF32 ? kNumberF32 : C.norm_type == kBiasBf16 ? kNumberBf16 : kNumberF16;
    TILEWISE_UNROLL
    for (int i = 0; i < kLaneColumns; ++i) {
      const int64_t at = minimum(column + i, p.shape.hidden - 1);
      part[i] = part[i] / unit * factor *
                load_number<Machine, kType>(p.norm.data, expert * p.norm.expert_stride + at * p.norm.stride);
    }
  }
};

}  // namespace tilewise::device
