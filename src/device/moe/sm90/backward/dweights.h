// Gradients of topk_weights: a pair's terms, which the tiles of the first product have left, and the product of dout
// and its expert's bias. Of a pair that is nobody's it is 0.
#pragma once

#include "device/moe/ids.h"
#include "device/moe/sm90/backward/config.h"
#include "device/moe/sm90/backward/params.h"
#include "device/sm90/contract.h"
#include "device/tile/columns.h"

namespace tilewise::device {

template <Sm90TileOps Ops, MoeDweightsConfig C>
class Sm90MoeDweights {
  using Machine = typename Ops::Machine;

 public:
  using Params = MoeDweightsParams;
  using Shared = NoShared;

  TILEWISE_INLINE static void run(const MoeDweightsParams& p, Shared&) {
    let_next_step_begin<Machine>();
    wait_for_step_before<Machine>();
    const int32_t step = Machine::blocks() * C.warps;
    for (int32_t pair = Machine::block() * C.warps + Machine::wave(); pair < p.shape.pairs(); pair += step) {
      const int32_t token = pair / p.shape.top_k, slot = pair - token * p.shape.top_k;
      const int32_t row = Machine::load_global(p.sorted.rows + pair);
      float sum = 0.0f;
      if (row != kNobody) {
        for (int32_t i = Machine::lane(); i < p.num_terms; i += Machine::kLanes) {
          sum += Machine::load_global(p.terms + int64_t{row} * p.num_terms + i);
        }
        if constexpr (C.biased) sum += of_bias(p, row, load_expert<Machine>(p.shape, p.topk_ids, token, slot));
      }
      TILEWISE_UNROLL
      for (int bit = 1; bit < Machine::kLanes; bit *= 2) sum += Machine::shuffle_xor(sum, bit);
      if (Machine::lane() == 0) store(p, token * p.token_stride + slot * p.slot_stride, sum);
    }
  }

 private:
  /// This lane's share.
  TILEWISE_INLINE static float of_bias(const MoeDweightsParams& p, int32_t row, int32_t expert) {
    constexpr int kNumber = C.type == kBf16 ? kNumberBf16 : kNumberF16;
    const ExpertBias& b = p.down_bias;
    float sum = 0.0f;
    for (int32_t n = Machine::lane() * kLaneColumns; n < p.shape.hidden; n += Machine::kLanes * kLaneColumns) {
      float dout[kLaneColumns];
      load_columns<Machine, true, kNumber>(dout, p.dout.data, row * p.dout.row_stride, n, p.shape.hidden);
      TILEWISE_UNROLL
      for (int j = 0; j < kLaneColumns; ++j) {
        sum += dout[j] * load_number<Machine>(b.data, expert * b.expert_stride + (n + j) * b.stride, b.type);
      }
    }
    return sum;
  }

  TILEWISE_INLINE static void store(const MoeDweightsParams& p, int64_t at, float sum) {
    if (p.out_type == kBiasF32) {
      Machine::store_global(static_cast<float*>(p.out) + at, sum);
    } else {
      const uint32_t bits =
          p.out_type == kBiasBf16 ? Machine::template pack<kBf16>(sum, 0.0f) : Machine::template pack<kF16>(sum, 0.0f);
      Machine::store_global(static_cast<uint16_t*>(p.out) + at, static_cast<uint16_t>(bits));
    }
  }
};

}  // namespace tilewise::device
