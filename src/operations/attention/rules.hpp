// Pure rules about an attention problem that more than one file needs: defaults, the one normal form, the options and
// the shape it states, and how the causal mask folds into the window.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "core/visibility.hpp"
#include "operations/elements.hpp"
#include "tilewise/attention.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::operations::attention {

/// 1/sqrt(head_dim).
[[nodiscard]] inline double default_softmax_scale(std::int64_t head_dim) {
  return 1.0 / std::sqrt(static_cast<double>(head_dim));
}

/// window_right with the causal mask folded in; -1: unbounded.
[[nodiscard]] constexpr std::int64_t folded_window_right(const AttentionProblem& problem) {
  return problem.mask == Mask::causal ? 0 : problem.window_right;
}

/// [batch, heads, queries, keys] of the bias and of its gradient: 1 where it is broadcast.
[[nodiscard]] constexpr std::array<std::int64_t, 4> bias_shape(const AttentionProblem& p) {
  return {p.bias_dims.batch ? p.batch_size : 1, p.bias_dims.head ? p.num_heads_q : 1,
          p.bias_dims.query ? p.seqlen_q : 1, p.bias_dims.key ? p.seqlen_k : 1};
}

/// Element type of a bias and of its gradient, where there is one.
[[nodiscard]] constexpr DType bias_dtype(const Problem& p) {
  return p.bias == BiasKind::boolean ? DType::boolean : p.bias == BiasKind::query ? p.dtype : DType::f32;
}

/// Element type of out beside such a q unless the call says otherwise.
[[nodiscard]] constexpr DType default_out_dtype(DType q) { return q == DType::fp8_e4m3 ? DType::bf16 : q; }

/// Element type of out.
[[nodiscard]] constexpr DType out_dtype_of(const Problem& p) {
  return p.out_dtype != DType::none ? p.out_dtype : default_out_dtype(p.dtype);
}

/// Element type of a sink and of its gradient, where there is one.
[[nodiscard]] constexpr DType sink_dtype(const Problem& p) { return p.sink == SinkKind::query ? p.dtype : DType::f32; }

/// What a bias' shape says: which dimensions it has. Throws where one is neither 1 nor that of the scores.
TILEWISE_INTERNAL void note_bias_dims(AttentionProblem& problem, const TensorView& bias);
/// Of a tensor of scales, by its shape. `heads`: those that each has a scale of.
[[nodiscard]] TILEWISE_INTERNAL ScaleKind scale_kind_of(const TensorView& scale, std::int64_t heads);

/// Whether a number may stand instead of a tensor of scales.
[[nodiscard]] inline bool is_scale(double number) { return number > 0.0 && std::isfinite(static_cast<float>(number)); }

/// The options that a problem states: all but seed, offset and tensors.
[[nodiscard]] TILEWISE_INTERNAL AttentionOptions stated_options(const AttentionProblem& problem);

/// The one form of all Problems that mean the same computation, so that they compare and hash
/// equal: a window ending on the diagonal is Mask::causal, dropout_p is rounded to a multiple of
/// 2^-16, and whatever cannot matter takes its default (the alignment without mask, window or
/// ALiBi; a seed tensor without dropout; the dtype of out that q's implies). Values that validate() rejects are left
/// alone.
[[nodiscard]] TILEWISE_INTERNAL AttentionProblem canonical(AttentionProblem problem);

}  // namespace tilewise::operations::attention
