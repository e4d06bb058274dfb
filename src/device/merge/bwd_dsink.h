// The gradient of a head's sink: the sum over rows of exp(sink - lse) * (dlse - delta).
#pragma once

#include "device/merge/rows.h"
#include "device/tile/contract.h"

namespace tilewise::device {

/// One block a head adds up in a fixed order.
template <TileOps Ops, auto C>
class MergeBwdDsink {
  using Machine = typename Ops::Machine;
  static constexpr int kThreads = C.waves * Machine::kLanes;

 public:
  using Params = MergeBwdDsinkParams;
  struct Shared {
    float part[kThreads];
  };

  TILEWISE_INLINE static void run(const Params& p, Shared& shared) {
    const int64_t head = Machine::block(), rows = p.shape.batch_size * p.shape.seqlen_q;
    const float sink = load_sink_logit<Machine>(p.sink, head);
    float sum = 0.0f;
    for (int64_t row = Machine::thread(); row < rows; row += kThreads) {
      const int64_t index = row * p.shape.num_heads_q + head;
      const int64_t batch = row / p.shape.seqlen_q, query = row % p.shape.seqlen_q;
      const int64_t at = batch * p.dlse.batch_stride + head * p.dlse.head_stride + query * p.dlse.seq_stride;
      const float dlse = p.dlse.data ? Machine::load_global(p.dlse.data + at) : 0.0f;
      const RowLse lse = RowLse::load<Machine>(p.lse_accum, index);
      const float delta = Machine::load_global(p.delta + index);
      if (sink != -kInfinity) sum += Machine::exp2(((sink - lse.score) - lse.rest) * kLog2E) * (dlse - delta);
    }
    const int thread = Machine::thread();
    Machine::store_shared(&shared.part[thread], sum);
    Machine::barrier();
    for (int half = kThreads / 2; half > 0; half /= 2) {
      if (thread < half) {
        Machine::store_shared(&shared.part[thread],
                              Machine::template load_shared<float>(&shared.part[thread]) +
                                  Machine::template load_shared<float>(&shared.part[thread + half]));
      }
      Machine::barrier();
    }
    if (thread == 0) store_gradient(p.dsink, head, Machine::template load_shared<float>(&shared.part[0]));
  }

 private:
  TILEWISE_INLINE static void store_gradient(const SinkTensor& dsink, int64_t head, float value) {
    const int64_t at = head * dsink.stride;
    if (dsink.type == kBiasF32) return Machine::store_global(static_cast<float*>(dsink.data) + at, value);
    const uint32_t packed = dsink.type == kBiasBf16 ? Machine::template pack<kBf16>(value, 0.0f)
                                                    : Machine::template pack<kF16>(value, 0.0f);
    Machine::store_global(static_cast<uint16_t*>(dsink.data) + at, static_cast<uint16_t>(packed));
  }
};

}  // namespace tilewise::device
