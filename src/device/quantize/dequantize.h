// Elements and scales back to numbers: the product is exact in fp32, or rounded to it once.
#pragma once

#include "device/quantize/places.h"
#include "device/tile/contract.h"

namespace tilewise::device {

/// A wave takes its lanes' columns of a row.
template <TileOps Ops, auto C>
class Dequantize {
  using Machine = typename Ops::Machine;
  static constexpr int64_t kRun = int64_t{Machine::kLanes} * kLaneColumns;
  static constexpr bool kE2m1 = C.e2m1 != 0, kVector = C.vector_rows != 0;

 public:
  using Params = QuantizeParams;
  using Shared = NoShared;

  TILEWISE_INLINE static void run(const Params& p, Shared&) {
    const QuantizeShape& s = p.shape;
    const int64_t index = static_cast<int64_t>(Machine::block()) * C.waves + Machine::wave();
    const QuantizePlaces places{s.num_experts, s.rows, ceil_div(s.columns, kRun)};
    if (index >= places.count()) return;
    const QuantizePlace place = places.at(index, kRun);
    const int64_t row = place.row_block, column = place.column + Machine::lane() * kLaneColumns;
    const auto* elements = static_cast<const uint8_t*>(p.elements.data) + place.expert * p.elements.expert_stride;
    float value[kLaneColumns];
    load_elements<Machine, kE2m1, kVector>(value, elements + row * p.elements.row_stride, column, s.columns);
    const float scale = scale_of(p, place.expert, row, minimum(column, s.columns - 1));
    float global = 1.0f;
    if constexpr (C.global) global = Machine::load_global(p.whole.data + place.expert * p.whole.expert_stride);
    TILEWISE_UNROLL
    for (int i = 0; i < kLaneColumns; ++i) {
      value[i] *= scale;  // exact, but where the scale is an f32
      if constexpr (C.global) value[i] *= global;
    }
    store_columns<Machine, kVector, C.number_type>(
        value, p.numbers.data, place.expert * p.numbers.expert_stride + row * p.numbers.row_stride, column, s.columns);
  }

 private:
  /// A lane's columns are of one block, which is as wide as several lanes'.
  TILEWISE_INLINE static float scale_of(const Params& p, int64_t expert, int64_t row, int64_t column) {
    const int64_t row_block = C.scope == kScopeTensor ? 0 : C.tall ? row / p.shape.block_rows : row;
    const int64_t column_block = C.scope == kScopeBlock ? column / p.shape.block_columns : 0;
    const int64_t at =
        expert * p.scales.expert_stride + row_block * p.scales.row_stride + column_block * p.scales.column_stride;
    if constexpr (C.scale_type == kScaleF32) {
      return Machine::load_global(static_cast<const float*>(p.scales.data) + at);
    } else {
      return scale_value(C.scale_type, Machine::load_global(static_cast<const uint8_t*>(p.scales.data) + at));
    }
  }
};

}  // namespace tilewise::device
