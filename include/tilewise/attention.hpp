// Fused attention: tensors, the short way (attention_forward, attention_backward) and the planned way
// (describe, plan, run). Options stand in problem.hpp, partial results join in merge.hpp. Meaning: docs/semantics.md.
#pragma once

#include "tilewise/error.hpp"
#include "tilewise/export.h"
#include "tilewise/merge.hpp"
#include "tilewise/plan.hpp"
#include "tilewise/problem.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise {

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
