// Reading and checking the length tensors of a call: those the host can read always, those of a GPU on request.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "operations/attention/call.hpp"

namespace tilewise::operations::attention {

/// The longest sequence of packed rows. Throws unless cu_seqlens starts at 0, never decreases,
/// ends within `total`, and no sequence is longer than `max_seqlen` where that is given.
[[nodiscard]] std::int64_t check_cu_seqlens(const TensorView& cu_seqlens, std::string_view name, std::int64_t total,
                                            std::optional<std::int64_t> max_seqlen, std::string_view max_name);

/// Throws unless 0 <= seqused, 0 <= leftpad and leftpad + seqused <= the length of each sequence.
void check_used_lengths(const Call& call, const AttentionProblem& problem);

/// With TILEWISE_CHECK=1 copies the length tensors of a call on a GPU to the host, waiting for `stream`, and
/// throws what the checks above throw. Kernels clamp lengths anyway, so without it nothing is read.
void check_device_lengths(const Call& call, const AttentionProblem& problem, void* stream);

}  // namespace tilewise::operations::attention
