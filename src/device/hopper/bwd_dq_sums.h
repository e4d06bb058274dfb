// What warps do with a tile's sums of dQ: multiply them, leave them in shared memory as their lanes hold them, add what
// lies there, and send it to memory.
#pragma once

#include "device/attention/tensor_rows.h"
#include "device/hopper/bwd_shared.h"
#include "device/hopper/bwd_work.h"
#include "device/sm90/matrix_descriptor.h"
#include "device/tile/fragment.h"
#include "device/tile/registers.h"

namespace tilewise::device {

/// Where the sums of a block's first tile begin.
template <auto C>
TILEWISE_INLINE float* first_sums(const BwdParamsOf<C>& p, const BwdWork& work) {
  const int64_t head = work.batch * p.shape.num_heads_q + work.query_head;
  return p.dq_accum + head * p.dq_accum_a_head + static_cast<int64_t>(work.query_tile<C>(0)) * C.tile_floats();
}

/// dQ = dS K, of operands that begin where the descriptors say. By a warpgroup; the products are committed.
template <class Machine, auto C, int kTiles>
TILEWISE_INLINE void issue_dq(Sm80Accumulator (&dQ)[kTiles], MatrixDescriptor dS, MatrixDescriptor K) {
  Machine::wgmma_fence();
  TILEWISE_UNROLL
  for (int k = 0; k < C.block_n() / 16; ++k) {
    constexpr int kStepBytes = 16 * kChunkRowBytes;
    Machine::template wgmma<C.k_type, kMnMajor, kMnMajor>(dQ, dS.advanced(k * kStepBytes), K.advanced(k * kStepBytes),
                                                          k > 0);
  }
  Machine::wgmma_commit();
}

/// place: of the warp; 8 columns of its 16 rows are 512 bytes, of which a lane has 16.
template <class Machine, class Sums>
TILEWISE_INLINE void stage_sums(float* place, int lane, const Sums& dQ) {
  float* const staged = place + 4 * lane;
  TILEWISE_UNROLL
  for (int c = 0; c < dQ.kColTiles; ++c) {
    const Sm80Accumulator& x = dQ.tile[0][c];
    Machine::store_shared(staged + c * 128, FloatRun<4>{{x[0], x[1], x[2], x[3]}});
  }
}
/// To memory: the first ones are stored, whatever was there.
template <class Machine>
TILEWISE_INLINE void send_sums(float* to, const float* sums, int32_t bytes, bool begins) {
  if (begins) {
    Machine::store_run(to, sums, bytes);
  } else {
    Machine::add_run(to, sums, bytes);
  }
}
template <class Machine, class Sums>
TILEWISE_INLINE void add_staged(Sums& dQ, const float* place, int lane) {
  const float* const staged = place + 4 * lane;
  TILEWISE_UNROLL
  for (int c = 0; c < dQ.kColTiles; ++c) {
    const auto four = Machine::template load_shared<FloatRun<4>>(staged + c * 128);
    TILEWISE_UNROLL
    for (int i = 0; i < 4; ++i) dQ.tile[0][c][i] += four.value[i];
  }
}

/// Where a query's dq begins, of those rounded with their last sums. row: within its sequence.
template <auto C>
TILEWISE_INLINE auto* dq_row(const BwdParamsOf<C>& p, const BwdWork& work, int32_t row) {
  return mutable_elements_of<C.q_type>(p.dq) + work.batch * p.dq.batch_stride +
         int64_t{work.q_row + row} * p.dq.seq_stride + work.query_head * p.dq.head_stride;
}

}  // namespace tilewise::device
