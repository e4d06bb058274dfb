// The sums of a captured tensor's gradient: cleared before bwd_dtable adds to them, or rounded into the gradient after.
#pragma once

#include "device/attention/config.h"
#include "device/attention/params.h"
#include "device/attention/score_functions.h"
#include "device/tile/contract.h"

namespace tilewise::device {

/// Elements are distributed over lanes.
template <TileOps Ops, auto C>
class BwdTableSums {
  using Machine = typename Ops::Machine;

 public:
  using Params = BwdTableSumsParams;
  using Shared = NoShared;

  TILEWISE_INLINE static void run(const Params& p, Shared&) {
    constexpr int kThreads = C.waves * Machine::kLanes;
    const int64_t first = static_cast<int64_t>(Machine::block()) * kThreads + Machine::thread();
    const int64_t step = static_cast<int64_t>(p.blocks) * kThreads;
    const int64_t count =
        C.stores ? static_cast<int64_t>(p.sizes[0]) * p.sizes[1] * p.sizes[2] * p.sizes[3] : p.sums_size;
    for (int64_t element = first; element < count; element += step) {
      if constexpr (C.stores) {
        store(p, element);
      } else {
        Machine::store_global(p.sums + element, 0.0f);
      }
    }
  }

 private:
  TILEWISE_INLINE static void store(const Params& p, int64_t element) {
    const float sum = Machine::load_global(p.sums + element);
    int64_t offset = 0, left = element;
    for (int dimension = 3; dimension >= 0; --dimension) {
      offset += left % p.sizes[dimension] * p.strides[dimension];
      left /= p.sizes[dimension];
    }
    if constexpr (C.element == kTableF32) {
      Machine::store_global(static_cast<float*>(p.to) + offset, sum);
    } else if constexpr (C.element == kTableF64) {
      Machine::store_global(static_cast<double*>(p.to) + offset, static_cast<double>(sum));
    } else {
      constexpr int kHalf = C.element == kTableBf16 ? kBf16 : kF16;
      const auto bits = static_cast<uint16_t>(Machine::template pack<kHalf>(sum, 0.0f));
      Machine::store_global(static_cast<uint16_t*>(p.to) + offset, bits);
    }
  }
};

}  // namespace tilewise::device
