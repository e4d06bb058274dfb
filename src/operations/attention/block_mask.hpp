// Block masks of attention: which scores they are of, and kernels on the CPU that expand them.
#pragma once

#include <memory>

#include "core/implementation.hpp"
#include "core/visibility.hpp"
#include "operations/attention/call.hpp"
#include "operations/block_mask.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::operations::attention {

/// What a problem's block mask is of.
[[nodiscard]] inline BlockedScores blocked_scores(const AttentionProblem& p) {
  return {p.block_mask, p.batch_size, p.num_heads_q, p.seqlen_q, p.seqlen_k, "seqlen_q", "seqlen_k"};
}

/// Throws Error for what the lists of a call on a GPU hold, where TILEWISE_CHECK=1 asks.
TILEWISE_INTERNAL void check_device_block_mask(const Call& call, const AttentionProblem& problem, void* stream);

/// Of a problem with a block mask, and a kernel of the problem with a block table on the CPU: expands the mask before
/// it.
[[nodiscard]] std::unique_ptr<core::Kernel> expanding_block_mask(std::unique_ptr<core::Kernel> kernel,
                                                                 const AttentionProblem& problem);

}  // namespace tilewise::operations::attention
