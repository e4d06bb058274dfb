// Rows of packed results that belong to no sequence: zeros, and a log-sum-exp of -infinity.
#pragma once

#include "device/attention/config.h"
#include "device/attention/params.h"
#include "device/attention/tensor_rows.h"
#include "device/tile/contract.h"

namespace tilewise::device {

/// Rows are distributed over blocks; a wave clears a head's row.
template <TileOps Ops, auto C>
class ClearRest {
  using Machine = typename Ops::Machine;

 public:
  using Params = ClearRestParams;
  using Shared = NoShared;

  TILEWISE_INLINE static void run(const Params& p, Shared&) {
    const AttentionShape& s = p.shape;
    const int64_t first_q = rows_of_sequences(s.cu_seqlens_q, s.batch_size);
    const int64_t first_k = rows_of_sequences(s.cu_seqlens_k, s.batch_size);
    clear(p, p.out, first_q, s.total_q, s.num_heads_q, s.head_dim_v);
    clear(p, p.dq, first_q, s.total_q, s.num_heads_q, s.head_dim);
    clear(p, p.dk, first_k, s.total_k, s.num_heads_k, s.head_dim);
    clear(p, p.dv, first_k, s.total_k, s.num_heads_k, s.head_dim_v);
    if (!p.softmax_lse.data) return;
    for (int64_t row = first_q + Machine::block(); row < s.total_q; row += p.blocks) {
      for (int64_t head = Machine::thread(); head < s.num_heads_q; head += C.waves * Machine::kLanes) {
        float* const at = p.softmax_lse.data + row * p.softmax_lse.seq_stride + head * p.softmax_lse.head_stride;
        Machine::store_global(at, -kInfinity);
      }
    }
  }

 private:
  TILEWISE_INLINE static int64_t rows_of_sequences(const int32_t* cu_seqlens, int64_t batch_size) {
    return maximum(Machine::load_global(cu_seqlens + batch_size), 0);
  }

  TILEWISE_INLINE static void clear(const Params& p, const Tensor4& to, int64_t first, int64_t end, int64_t heads,
                                    int64_t dim) {
    if (!to.data) return;
    for (int64_t row = first + Machine::block(); row < end; row += p.blocks) {
      for (int64_t head = Machine::wave(); head < heads; head += C.waves) {
        auto* const at = static_cast<uint16_t*>(to.data) + row * to.seq_stride + head * to.head_stride;
        for (int64_t col = Machine::lane(); col < dim; col += Machine::kLanes) {
          Machine::store_global(at + col, uint16_t{0});
        }
      }
    }
  }
};

}  // namespace tilewise::device
