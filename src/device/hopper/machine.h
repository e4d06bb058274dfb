// A warp of a Hopper GPU: what it can do beyond sm_80's, and its share of a wgmma.
#pragma once

#include "device/hopper/mbarrier.h"
#include "device/hopper/warpgroup.h"
#include "device/tile/fragment.h"
#include "device/tile/machine_sm80.h"

namespace tilewise::device {

struct HopperMachine : Sm80Machine {
  /// The same value, known to be the same in every lane: what steers wgmma has to be.
  TILEWISE_INLINE static int32_t uniform(int32_t value) { return __shfl_sync(~0u, value, 0); }
  /// This warp's first row of its warpgroup's 64.
  TILEWISE_INLINE static int32_t warp_row() { return static_cast<int32_t>(threadIdx.x) / 32 % 4 * 16; }
  /// One instruction of the special function unit; its relative error is 2^-11.
  TILEWISE_INLINE static float tanh(float x) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  /// Whether it is the one thread of its warpgroup that speaks for it.
  TILEWISE_INLINE static bool leads() { return threadIdx.x % kWarpgroupThreads == 0; }
  /// Once all lanes have come here, one of them tells a barrier.
  TILEWISE_INLINE static void arrive_as_warp(Barrier& barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier.arrive();
  }
  /// Four 8x8 matrices; lanes 8m to 8m+7 give the addresses of the rows of matrix m.
  TILEWISE_INLINE static void store_matrices(void* row, const uint32_t (&from)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(device::shared_address(row)),
                 "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
                 : "memory");
  }
  /// Of four lanes that each hold a part of four things, each gets all parts of one: word[i] of lane j goes to word[j]
  /// of lane i, within lanes of the same quarter of the warp's lane numbers.
  TILEWISE_INLINE static void transpose_quad(uint32_t (&word)[4]) {
    TILEWISE_UNROLL
    for (int bit = 1; bit <= 2; bit *= 2) {
      const bool upper = (lane() & bit) != 0;
      TILEWISE_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (i & bit) continue;
        const uint32_t sent = upper ? word[i] : word[i | bit];
        const uint32_t received = __shfl_xor_sync(~0u, sent, bit);
        (upper ? word[i] : word[i | bit]) = received;
      }
    }
  }
};

/// wgmma's accumulators lie in a warp's registers as those of mma.sync do.
template <class Machine_>
struct Sm90Ops {
  using Machine = Machine_;
  using FragmentLayout = Sm80FragmentLayout;
  using Accumulator = Sm80Accumulator;
};
using HopperOps = Sm90Ops<HopperMachine>;

}  // namespace tilewise::device
