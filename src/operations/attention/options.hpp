// The one list of the options of an attention call: which are tensors, and which numbers and choices a problem has as
// they are given.
#pragma once

#include <string_view>

#include "core/tensor_checks.hpp"
#include "tilewise/attention.hpp"

namespace tilewise::operations::attention {

// Structured bindings name every member, so that a new one does not compile until it is looked at here.

/// Calls tensor(name, view, access) for the tensors among the options, given or not, and plain(option, field) for
/// every option that the problem has a field of. The others have rules of their own: the layout and the packed maxima
/// are shapes, softmax_scale has a default, seed and offset no problem depends on. `p` may be other options too.
template <typename Options, typename Problem, typename Tensor, typename Plain>
void for_each_option(Options& options, Problem& p, const Tensor& tensor, const Plain& plain) {
  using enum core::Access;
  [[maybe_unused]] auto& [layout, mask, alignment, window_left, window_right, softmax_scale, softcap, dropout_p, seed,
                          offset, seed_and_offset, bias, alibi_slopes, sink, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
                          max_seqlen_k, seqused_q, seqused_k, leftpad_k, deterministic, batch_invariant] = options;
  plain(mask, p.mask);
  plain(alignment, p.alignment);
  plain(window_left, p.window_left);
  plain(window_right, p.window_right);
  plain(softcap, p.softcap);
  plain(dropout_p, p.dropout_p);
  plain(deterministic, p.deterministic);
  plain(batch_invariant, p.batch_invariant);
  tensor("seed_and_offset", seed_and_offset, read);
  tensor("bias", bias, read);
  tensor("alibi_slopes", alibi_slopes, read);
  tensor("sink", sink, read);
  tensor("cu_seqlens_q", cu_seqlens_q, read);
  tensor("cu_seqlens_k", cu_seqlens_k, read);
  tensor("seqused_q", seqused_q, read);
  tensor("seqused_k", seqused_k, read);
  tensor("leftpad_k", leftpad_k, read);
}

template <typename Options, typename Visit>
void for_each_option_tensor(Options& options, const Visit& visit) {
  for_each_option(options, options, visit, [](auto&, auto&) {});
}

template <typename Options, typename Problem, typename Visit>
void for_each_plain_option(Options& options, Problem& problem, const Visit& visit) {
  for_each_option(options, problem, [](auto&&...) {}, visit);
}

}  // namespace tilewise::operations::attention
