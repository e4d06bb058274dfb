// What an attention call tells its kernels: plain data, shape beside every pointer, shared by host and device.
#pragma once

#include <stdint.h>

#include "device/common/tensors.h"

namespace tilewise {

struct TensorView;  // of the host

}  // namespace tilewise

namespace tilewise::device {

/// Sizes of a call, and the lengths of its sequences.
struct AttentionShape {
  int64_t batch_size, seqlen_q, seqlen_k;  // packed: the maxima
  int64_t num_heads_q, num_heads_k, head_dim, head_dim_v;
  int64_t total_q, total_k;  // packed only

  // Lengths; null where not given. cu_seqlens have batch_size + 1 entries, the others batch_size.
  const int32_t *cu_seqlens_q, *cu_seqlens_k, *seqused_q, *seqused_k, *leftpad_k;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("batch_size", p.batch_size), visit("seqlen_q", p.seqlen_q), visit("seqlen_k", p.seqlen_k);
    visit("num_heads_q", p.num_heads_q), visit("num_heads_k", p.num_heads_k), visit("head_dim", p.head_dim);
    visit("head_dim_v", p.head_dim_v), visit("total_q", p.total_q), visit("total_k", p.total_k);
    visit("cu_seqlens_q", p.cu_seqlens_q), visit("cu_seqlens_k", p.cu_seqlens_k), visit("seqused_q", p.seqused_q);
    visit("seqused_k", p.seqused_k), visit("leftpad_k", p.leftpad_k);
  }
};

/// The numbers of a score's formula as kernels that compute in double get them too; ScoreParams has them in single.
struct ScoreFactors {
  double softmax_scale, softcap;  // softcap 0: off
  double dropout_scale;           // 1 / (1 - dropout_p)
};

/// What a score is, from the product q.k to the probability after dropout.
struct ScoreParams {
  int64_t window_left, window_right;  // -1: unbounded; causal is already folded into window_right
  int32_t top_left;                   // alignment: 1 top-left, 0 bottom-right
  int32_t bias_type;
  float softmax_scale, softcap;  // softcap 0: off
  BiasTensor bias;
  const float* alibi_slopes;  // [batch, head] by its strides; null: off
  int64_t alibi_batch_stride, alibi_head_stride;

  uint32_t dropout_threshold;  // 65536 * dropout_p; 0: off
  float dropout_scale;         // 1 / (1 - dropout_p)
  uint64_t seed, offset;
  const int64_t* seed_and_offset;  // [2]; overrides seed and offset when not null
  int64_t seed_and_offset_stride;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("window_left", p.window_left), visit("window_right", p.window_right), visit("top_left", p.top_left);
    visit("bias_type", p.bias_type), visit("softmax_scale", p.softmax_scale), visit("softcap", p.softcap);
    visit("bias", p.bias), visit("alibi_slopes", p.alibi_slopes), visit("alibi_batch_stride", p.alibi_batch_stride);
    visit("alibi_head_stride", p.alibi_head_stride), visit("dropout_threshold", p.dropout_threshold);
    visit("dropout_scale", p.dropout_scale), visit("seed", p.seed), visit("offset", p.offset);
    visit("seed_and_offset", p.seed_and_offset), visit("seed_and_offset_stride", p.seed_and_offset_stride);
  }
};

/// Queries and the keys that they attend to, as kernels see them: attention fills them from its tensors, the KV cache
/// step from its cache, whose k and v are [row of the cache or page, place, head, dim] and whose seqlen_k is a
/// sequence's capacity.
struct AttendedRows : AttentionShape, ScoreParams {
  Tensor4 q, k, v, out;
  LseTensor softmax_lse;  // data null where the forward pass is not asked for it
  SinkTensor sink;
  IndexTensor key_indices;
};

/// A whole call, forward or backward: what CPU kernels take, and what those of GPUs are given their parameters from.
struct AttentionParams : AttendedRows {
  HeadScales q_scale, k_scale, v_scale;  // 1 but in fp8; q_scale by query heads, the others by key heads

  // Backward only. Undefined outputs have null data.
  Tensor4 dout, dq, dk, dv;
  LseTensor dlse;
  BiasTensor dbias;
  int64_t dbias_shape[4];  // its own dimensions (1 where broadcast)
  SinkTensor dsink;
  int32_t deterministic, batch_invariant;

  const TensorView* tables;   // of score_mod and mask_mod, as many as the problem has; in memory of the host
  const TensorView* dtables;  // their gradients, of each that is wanted

  const TensorView* block_mask;  // AttentionOptions::block_mask, as many as the problem has; in memory of the host
};

}  // namespace tilewise::device
