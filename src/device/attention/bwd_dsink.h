// The gradient of a head's sink, which follows from delta: dsink = -sum over rows of exp(sink - lse) * delta.
#pragma once

#include "device/attention/config.h"
#include "device/attention/grid_place.h"
#include "device/attention/sink.h"
#include "device/attention/tensor_rows.h"
#include "device/tile/contract.h"

namespace tilewise::device {

/// One block a head adds up in a fixed order.
template <TileOps Ops, auto C>
class BwdDsink {
  using Machine = typename Ops::Machine;
  static constexpr int kThreads = C.waves * Machine::kLanes;

 public:
  using Params = BwdDsinkParams;
  struct Shared {
    float part[kThreads];
  };

  TILEWISE_INLINE static void run(const Params& p, Shared& shared) {
    const int64_t head = Machine::block();
    const float sink = load_sink<Machine, C.q_type>(p.sink, head);
    float sum = 0.0f;
    for (int64_t b = 0; b < p.shape.batch_size; ++b) {
      const Sequence s = sequence_at<C>(p.shape, b);
      for (int64_t i = Machine::thread(); i < s.seqlen_q; i += kThreads) {
        const float lse = Machine::load_global(p.softmax_lse.data + lse_offset(p.softmax_lse, s, b, i, head));
        const float delta = Machine::load_global(p.delta + dense_row(p.shape, b, i, head));
        if (lse != -kInfinity) sum -= Machine::exp2((sink - lse) * kLog2E) * delta;
      }
    }
    Machine::store_shared(&shared.part[Machine::thread()], sum);
    Machine::barrier();
    for (int half = kThreads / 2; half > 0; half /= 2) {
      const int thread = Machine::thread();
      if (thread < half) {
        Machine::store_shared(&shared.part[thread],
                              Machine::template load_shared<float>(&shared.part[thread]) +
                                  Machine::template load_shared<float>(&shared.part[thread + half]));
      }
      Machine::barrier();
    }
    if (Machine::thread() == 0) {
      store_dsink<Machine, C.q_type>(p.dsink, head, Machine::template load_shared<float>(&shared.part[0]));
    }
  }
};

}  // namespace tilewise::device
