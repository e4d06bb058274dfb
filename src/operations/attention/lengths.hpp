// Reading and checking the length tensors of a call: those the host can read always, those of a GPU on request.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "core/visibility.hpp"
#include "operations/attention/call.hpp"

namespace tilewise::operations::attention {

/// The longest sequence of packed rows. Throws unless cu_seqlens starts at 0, never decreases,
/// ends within `total`, and no sequence is longer than `max_seqlen` where that is given.
[[nodiscard]] std::int64_t check_cu_seqlens(const TensorView& cu_seqlens, std::string_view name, std::int64_t total,
                                            std::optional<std::int64_t> max_seqlen, std::string_view max_name);

/// Throws unless 0 <= seqused, 0 <= leftpad and leftpad + seqused <= the length of each sequence.
void check_used_lengths(const AttentionOptions& options, const AttentionProblem& problem);

/// Throws for an index among key_indices that is neither -1 nor a key of its sequence. The host must be able to read.
void check_selected_keys(const device::AttentionParams& params, const AttentionProblem& problem);

/// With TILEWISE_CHECK=1 copies lengths and key_indices of a call on a GPU to the host, waiting for `stream`, and
/// throws what the checks above throw. Kernels clamp lengths anyway, so without it nothing is read.
TILEWISE_INTERNAL void check_device_lengths(const Call& call, const AttentionProblem& problem, void* stream);

}  // namespace tilewise::operations::attention
