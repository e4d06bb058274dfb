// Fused attention: options, tensors, the short way (attention_forward, attention_backward) and the
// planned way (describe, plan, run). Partial results join in merge.hpp. Meaning: docs/semantics.md.
#pragma once

#include <cstdint>
#include <optional>

#include "tilewise/error.hpp"
#include "tilewise/export.h"
#include "tilewise/merge.hpp"
#include "tilewise/plan.hpp"
#include "tilewise/problem.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise {

/// Everything about an attention call that is not q, k, v or an output. An undefined
/// TensorView means "not given". Shapes and dtypes are those of docs/semantics.md.
struct AttentionOptions {
  Layout layout = Layout::bshd;
  Mask mask = Mask::none;
  Alignment alignment = Alignment::bottom_right;
  std::int64_t window_left = -1;        ///< keys visible to the left of the diagonal; -1: unbounded
  std::int64_t window_right = -1;       ///< likewise to the right; must be <= 0 when causal
  std::optional<double> softmax_scale;  ///< default 1/sqrt(head_dim)
  double softcap = 0.0;                 ///< 0: off
  double dropout_p = 0.0;               ///< in [0, 1), rounded to a multiple of 2^-16
  std::uint64_t seed = 0;               ///< Philox seed and offset of dropout ...
  std::uint64_t offset = 0;
  TensorView seed_and_offset;  ///< ... or an int64 tensor [2] that the kernel reads
  TensorView bias;             ///< broadcastable to [batch_size, num_heads_q, seqlen_q, seqlen_k]
  TensorView alibi_slopes;     ///< f32 (f64 where q is) [num_heads_q] or [batch_size, num_heads_q]
  TensorView sink;             ///< f32 or the dtype of q, [num_heads_q]
  TensorView cu_seqlens_q;     ///< int32 [batch_size + 1]; requires layout thd
  TensorView cu_seqlens_k;
  std::optional<std::int64_t> max_seqlen_q;  ///< thd only; computed where cu_seqlens are readable
  std::optional<std::int64_t> max_seqlen_k;
  TensorView seqused_q;  ///< int32 [batch_size]
  TensorView seqused_k;
  TensorView leftpad_k;
  bool deterministic = false;    ///< dq, dbias and dsink bit-reproducible too
  bool batch_invariant = false;  ///< a sequence's result does not depend on the rest of the batch
};

/// What is written must share no element with what is read, with another output or with itself.
struct ForwardArguments {
  TensorView q, k, v;
  TensorView out;          ///< written; q's shape with head_dim_v
  TensorView softmax_lse;  ///< written when defined; f32 (f64 where q is) [batch_size, num_heads_q, seqlen_q] or
                           ///< [num_heads_q, total_q]
  AttentionOptions options;
};

struct BackwardArguments {
  TensorView dout;                       ///< gradient of out
  TensorView dlse;                       ///< gradient of softmax_lse, or undefined
  TensorView q, k, v, out, softmax_lse;  ///< as the forward pass took and wrote them
  TensorView dq, dk, dv;                 ///< written; dtype of q; each may be undefined
  TensorView dbias;                      ///< written when defined; bias' shape and dtype
  TensorView dsink;                      ///< written when defined; sink's shape and dtype
  AttentionOptions options;
};

/// The problem that a call describes. Throws Error naming the first bad argument.
[[nodiscard]] TILEWISE_EXPORT AttentionProblem describe(const ForwardArguments& arguments);
[[nodiscard]] TILEWISE_EXPORT AttentionProblem describe(const BackwardArguments& arguments);

/// Executes a plan on tensors that describe to the plan's problem (checked). `workspace`
/// holds plan.workspace_size() bytes (null: as attention_forward() finds it). `stream` is the GPU
/// stream (a CUstream or hipStream_t; null is the legacy default stream); null on the CPU.
TILEWISE_EXPORT void run(const Plan& plan, const ForwardArguments& arguments, void* workspace = nullptr,
                         void* stream = nullptr);
TILEWISE_EXPORT void run(const Plan& plan, const BackwardArguments& arguments, void* workspace = nullptr,
                         void* stream = nullptr);

/// Describe, plan and run in one call. On a GPU the workspace is memory that the calling thread keeps for the
/// device and stream; inside a capture it must be there already, from the same call before.
TILEWISE_EXPORT void attention_forward(const ForwardArguments& arguments, const SelectOptions& select = {},
                                       void* stream = nullptr);
TILEWISE_EXPORT void attention_backward(const BackwardArguments& arguments, const SelectOptions& select = {},
                                        void* stream = nullptr);

}  // namespace tilewise
