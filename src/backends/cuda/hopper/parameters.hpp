// The parameter blocks of the Hopper kernels, member by member, and what each of their pointers points to. What tensor
// maps hold is no pointer of the block.
#pragma once

#include "backends/portable/attention/parameters.hpp"
#include "device/hopper/params.h"

#define TILEWISE_TENSOR_MAP(X) X(opaque)
#define TILEWISE_TILE_ORDER(X)                                                                                        \
  X(num_tiles), X(num_heads), X(batch_size), X(heads_at_once), X(short_tiles), X(queries_per_warpgroup), X(counters), \
      X(unused)
#define TILEWISE_HOPPER_FORWARD_PARAMS(X)                                                                  \
  X(q_map), X(k_map), X(v_map), X(out_map), X(shape), X(score), X(out), X(softmax_lse), X(sink), X(order), \
      X(tile_counter)

TILEWISE_DESCRIBE(tilewise::device::TensorMap, TILEWISE_TENSOR_MAP);
TILEWISE_DESCRIBE(tilewise::device::TileOrder, TILEWISE_TILE_ORDER);
TILEWISE_DESCRIBE(tilewise::device::HopperForwardParams, TILEWISE_HOPPER_FORWARD_PARAMS);

#undef TILEWISE_TENSOR_MAP
#undef TILEWISE_TILE_ORDER
#undef TILEWISE_HOPPER_FORWARD_PARAMS

namespace tilewise::backends::hopper {

void for_each_pointer(const device::HopperForwardParams& params, const gpu::RegionVisitor& visit);

}  // namespace tilewise::backends::hopper
