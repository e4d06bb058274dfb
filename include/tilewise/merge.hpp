// Merging partial results of attention over disjoint keys, and its gradients: the short way (merge, merge_backward)
// and the planned way (describe, plan, run). Meaning: docs/semantics.md, "Merging".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tilewise/any_problem.hpp"
#include "tilewise/error.hpp"
#include "tilewise/export.h"
#include "tilewise/layout.hpp"
#include "tilewise/plan.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise {

enum class MergePass : std::uint8_t { merge, merge_backward };
/// Element type of the outs and of their gradients. mixed: some have the dtype of out, some are f32.
enum class PartsDType : std::uint8_t { f32, bf16, f16, f64, mixed };
/// none; f32; query: the dtype of out, which is that of q.
enum class MergeSink : std::uint8_t { none, f32, query };

/// A value: hashable, comparable, printable. Invariants are checked by validate(), not here.
struct MergeProblem {
  MergePass pass = MergePass::merge;
  DType dtype = DType::f32;  ///< of out
  PartsDType parts_dtype = PartsDType::f32;
  DeviceType device = DeviceType::cpu;
  Layout layout = Layout::bshd;

  std::int64_t parts = 2;
  std::int64_t batch_size = 1;  ///< thd: 1
  std::int64_t seqlen_q = 0;    ///< thd: total_q
  std::int64_t num_heads_q = 1;
  std::int64_t head_dim_v = 0;

  MergeSink sink = MergeSink::none;
  bool stacked = false;  ///< the parts are one tensor [parts, ...]

  bool softmax_lse = true;                         ///< forward: the caller wants it
  bool dlse = false;                               ///< backward: given
  bool douts = true, dlses = true, dsink = false;  ///< backward: wanted
  bool unaligned = false;  ///< some row of a tensor does not start on 16 bytes; the cpu does not care: false there

  friend bool operator==(const MergeProblem&, const MergeProblem&) = default;
};

[[nodiscard]] TILEWISE_EXPORT const core::OperationInterface& operation_of(const MergeProblem* tag) noexcept;

[[nodiscard]] TILEWISE_EXPORT std::size_t hash_value(const MergeProblem& problem) noexcept;

/// E.g. "merge dtype=bf16 parts=4 batch_size=2 seqlen_q=4096 num_heads_q=32 head_dim_v=128 sink=f32". For thd the
/// rows are total_q.
[[nodiscard]] TILEWISE_EXPORT std::string to_string(const MergeProblem& problem);

TILEWISE_EXPORT void validate(const MergeProblem& problem);

/// Partial results as lists, outs[n] like `out` and lses[n] like `softmax_lse`; or stacked, with one tensor
/// [parts, ...] in each list. What is written must share no element with what is read, with another output or with
/// itself.
struct MergeArguments {
  std::vector<TensorView> outs;  ///< each in the dtype of out or in f32 (f64 where out is f64)
  std::vector<TensorView> lses;  ///< f32 (f64 where out is): [batch_size, num_heads_q, seqlen_q]; thd: [heads, total]
  TensorView sink;               ///< f32 or the dtype of out, [num_heads_q]; or undefined
  TensorView out;                ///< written
  TensorView softmax_lse;        ///< written when defined
  Layout layout = Layout::bshd;
};

struct MergeBackwardArguments {
  TensorView dout;                     ///< gradient of out, in its dtype
  TensorView dlse;                     ///< gradient of softmax_lse, or undefined
  std::vector<TensorView> outs, lses;  ///< as the forward pass took them
  TensorView sink;                     ///< likewise
  std::vector<TensorView> douts;       ///< written; like outs, or empty
  std::vector<TensorView> dlses;       ///< written; like lses, or empty
  TensorView dsink;                    ///< written when defined; sink's shape and dtype
  Layout layout = Layout::bshd;
};

/// The problem that a call describes. Throws Error naming the first bad argument.
[[nodiscard]] TILEWISE_EXPORT MergeProblem describe(const MergeArguments& arguments);
[[nodiscard]] TILEWISE_EXPORT MergeProblem describe(const MergeBackwardArguments& arguments);

/// Executes a plan on tensors that describe to the plan's problem (checked); see attention's run().
TILEWISE_EXPORT void run(const Plan& plan, const MergeArguments& arguments, void* workspace = nullptr,
                         void* stream = nullptr);
TILEWISE_EXPORT void run(const Plan& plan, const MergeBackwardArguments& arguments, void* workspace = nullptr,
                         void* stream = nullptr);

/// Describe, plan and run in one call; see attention_forward().
TILEWISE_EXPORT void merge(const MergeArguments& arguments, const SelectOptions& select = {}, void* stream = nullptr);
TILEWISE_EXPORT void merge_backward(const MergeBackwardArguments& arguments, const SelectOptions& select = {},
                                    void* stream = nullptr);

/// merge() of MergeArguments{outs, lses, sink, out, softmax_lse, layout}. Source: the usual log-sum-exp identity.
TILEWISE_EXPORT void merge(std::span<const TensorView> outs, std::span<const TensorView> lses, const TensorView& sink,
                           const TensorView& out, const TensorView& softmax_lse, Layout layout = Layout::bshd);

}  // namespace tilewise
