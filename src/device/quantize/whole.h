// What a whole tensor shares: the greatest magnitude of each share of it, then its scale or nvfp4's factor. Whichever
// order shares come in, the result is the same.
#pragma once

#include "device/quantize/places.h"
#include "device/tile/contract.h"

namespace tilewise::device {

/// A wave has a share: each parts-th stretch of its lanes' columns.
template <TileOps Ops, auto C>
class QuantizeExtremes {
  using Machine = typename Ops::Machine;
  static constexpr int64_t kRun = int64_t{Machine::kLanes} * kLaneColumns;

 public:
  using Params = QuantizeExtremesParams;
  using Shared = NoShared;

  TILEWISE_INLINE static void run(const Params& p, Shared&) {
    const QuantizeShape& s = p.shape;
    const int64_t index = static_cast<int64_t>(Machine::block()) * C.waves + Machine::wave();
    if (index >= s.num_experts * p.parts) return;
    const int64_t expert = index / p.parts, runs = ceil_div(s.columns, kRun);
    int32_t key = 0;
    for (int64_t piece = index % p.parts; piece < s.rows * runs; piece += p.parts) {
      float value[kLaneColumns];
      const auto at = static_cast<uint32_t>(piece), divisor = static_cast<uint32_t>(runs);
      const int64_t row = at / divisor, column = at % divisor * kRun + Machine::lane() * kLaneColumns;
      load_columns<Machine, C.vector_rows != 0, C.number_type>(
          value, p.x.data, expert * p.x.expert_stride + row * p.x.row_stride, column, s.columns);
      key = greatest_key<false>(value, key);
    }
    key = greatest_of_lanes<Machine>(key, Machine::kLanes);
    if (Machine::lane() == 0) Machine::store_global(p.amax + index, __builtin_bit_cast(float, key));
  }
};

/// A wave has a tensor.
template <TileOps Ops, auto C>
class QuantizeWholeScale {
  using Machine = typename Ops::Machine;

 public:
  using Params = QuantizeWholeParams;
  using Shared = NoShared;

  TILEWISE_INLINE static void run(const Params& p, Shared&) {
    const int64_t expert = static_cast<int64_t>(Machine::block()) * C.waves + Machine::wave();
    if (expert >= p.shape.num_experts) return;
    int32_t key = 0;
    for (int64_t part = Machine::lane(); part < p.parts; part += Machine::kLanes)
      key = maximum(key, __builtin_bit_cast(int32_t, Machine::load_global(p.amax + expert * p.parts + part)));
    const auto amax = __builtin_bit_cast(float, greatest_of_lanes<Machine>(key, Machine::kLanes));
    const float scale = C.global ? global_scale(amax) : real_scale(amax, C.power_of_two != 0);
    if (Machine::lane() == 0) Machine::store_global(p.whole.data + expert * p.whole.expert_stride, scale);
  }
};

}  // namespace tilewise::device
