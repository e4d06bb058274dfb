// The states of a block mask's blocks from its lists: the table that mask_mod looks up, and mask_tiles before it.
#pragma once

#include "device/attention/config.h"
#include "device/attention/params.h"
#include "device/tile/contract.h"

namespace tilewise::device {

/// A wave has one list. What is out of range is listed nowhere.
template <TileOps Ops, auto C>
class BlockStates {
  using Machine = typename Ops::Machine;

 public:
  using Params = BlockStatesParams;
  using Shared = NoShared;

  TILEWISE_INLINE static void run(const Params& p, Shared&) {
    const int64_t list = int64_t{Machine::block()} * C.waves + Machine::wave();
    if (list >= int64_t{p.batch} * p.heads * p.rows) return;
    const auto row = static_cast<int32_t>(list % p.rows), of_head = static_cast<int32_t>(list / p.rows);
    const int32_t head = of_head % p.heads, batch = of_head / p.heads;
    const int32_t* const at_count =
        p.counts + batch * p.count_strides[0] + head * p.count_strides[1] + row * p.count_strides[2];
    const int32_t* const indices =
        p.indices + batch * p.index_strides[0] + head * p.index_strides[1] + row * p.index_strides[2];
    const int32_t count = minimum(Machine::load_global(at_count), p.columns);
    for (int32_t n = Machine::lane(); n < count; n += Machine::kLanes) {
      const int32_t column = Machine::load_global(indices + n * p.index_strides[3]);
      if (column < 0 || column >= p.columns) continue;
      Machine::store_global(p.states + list * p.columns + column, static_cast<uint8_t>(p.state));
    }
  }
};

}  // namespace tilewise::device
