// The mainloop of products of 16-bit elements over a tile's steps along K.
#pragma once

#include "device/gemm/sm90/tiles.h"
#include "device/sm90/mma.h"

namespace tilewise::device {

/// A step's products are issued before those of the step before are waited for.
template <class Machine, GemmConfig C, class Sums, int kRowBlocks, class Pipe>
TILEWISE_INLINE void multiply_tile(Sums (&sums)[kRowBlocks], GemmStage<C> (&stages)[C.stages],
                                   ConsumerPlace<Pipe>& place, int32_t first_row, int32_t steps) {
  for (Sums& part : sums) pin_registers<Machine>(part);
  TILEWISE_NO_UNROLL
  for (int32_t step = 0; step < steps; ++step, place.advance()) {
    place.wait();
    GemmStage<C>& stage = stages[place.stage()];
    Machine::wgmma_fence();
    TILEWISE_UNROLL
    for (int i = 0; i < kRowBlocks; ++i) {
      if constexpr (C.w_mn_major) {
        mma_AB<Machine, C.type>(sums[i].tile[0], stage.x, first_row + 64 * i, stage.w, step > 0);
      } else {
        mma_ABt<Machine, C.type>(sums[i].tile[0], stage.x, first_row + 64 * i, stage.w, step > 0);
      }
    }
    Machine::wgmma_commit();
    Machine::template wgmma_wait<1>();
    if (step > 0) place.release_before();
  }
  Machine::template wgmma_wait<0>();
  for (Sums& part : sums) pin_registers<Machine>(part);
  place.release_before();
}

}  // namespace tilewise::device
