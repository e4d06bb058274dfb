// What a kernel is told: plain data, shape beside every pointer, shared by host and device.
// Every layout is seen as [batch, seq, head, dim] through strides in elements.
#pragma once

#include <stdint.h>

namespace tilewise::device {

/// A [batch, seq, head, dim] tensor with contiguous dim. Packed (thd): batch_stride is 0 and
/// rows are counted over all sequences.
struct Tensor4 {
  void* data;
  int64_t batch_stride, seq_stride, head_stride;
};

/// fp32 [batch, head, seq] (packed: [head, total], batch_stride 0). Where q is f64, which CPUs alone
/// take, `data` is a double*, and so is AttentionParams::alibi_slopes.
struct LseTensor {
  float* data;
  int64_t batch_stride, head_stride, seq_stride;
};

/// Element types of a bias or a sink as the kernel reads them.
enum BiasType : int32_t { kBiasNone = 0, kBiasF32 = 1, kBiasBf16 = 2, kBiasF16 = 3, kBiasBool = 4, kBiasF64 = 5 };

/// Bias or its gradient; a broadcast dimension has stride 0.
struct BiasTensor {
  void* data;
  int64_t batch_stride, head_stride, query_stride, key_stride;
};

struct AttentionParams {
  int64_t batch_size, seqlen_q, seqlen_k;  // packed: the maxima
  int64_t num_heads_q, num_heads_k, head_dim, head_dim_v;
  int64_t total_q, total_k;  // packed only

  Tensor4 q, k, v, out;
  LseTensor softmax_lse;  // data null where the forward pass is not asked for it

  // Lengths; null where not given. cu_seqlens have batch_size + 1 entries, the others batch_size.
  const int32_t *cu_seqlens_q, *cu_seqlens_k, *seqused_q, *seqused_k, *leftpad_k;

  int64_t window_left, window_right;  // -1: unbounded; causal is already folded into window_right
  int32_t top_left;                   // alignment: 1 top-left, 0 bottom-right
  float softmax_scale, softcap;       // softcap 0: off

  int32_t bias_type, sink_type;
  BiasTensor bias;
  const float* alibi_slopes;  // null: off
  int64_t alibi_batch_stride, alibi_head_stride;
  const void* sink;  // null: off
  int64_t sink_stride;

  uint32_t dropout_threshold;  // 65536 * dropout_p; 0: off
  float dropout_scale;         // 1 / (1 - dropout_p)
  uint64_t seed, offset;
  const int64_t* seed_and_offset;  // overrides seed and offset when not null
  int64_t seed_and_offset_stride;

  // Backward only. Undefined outputs have null data.
  Tensor4 dout, dq, dk, dv;
  LseTensor dlse;
  BiasTensor dbias;
  int64_t dbias_shape[4];  // its own dimensions (1 where broadcast)
  void* dsink;             // of sink_type
  int64_t dsink_stride;
  int32_t deterministic, batch_invariant;
};

}  // namespace tilewise::device
