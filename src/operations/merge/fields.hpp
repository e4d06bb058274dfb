// The one list of a merge problem's fields: problem text, hash, random drawing and the checks of other lists are
// driven by it.
#pragma once

#include <string_view>

#include "core/problem_text.hpp"
#include "operations/merge/names.hpp"
#include "operations/merge/rules.hpp"
#include "tilewise/merge.hpp"

namespace tilewise::operations::merge {

/// See core/problem_text.hpp. The pass itself is a text's first word.
template <typename Visit>
void for_each_field(MergeProblem& p, Visit&& visit) {
  using core::kRequired;
  const MergeProblem fresh;
  visit("device", p.device, fresh.device);
  visit("dtype", p.dtype, fresh.dtype);
  visit("parts_dtype", p.parts_dtype, parts_dtype_of(p.dtype));
  visit("layout", p.layout, fresh.layout);
  visit("parts", p.parts, fresh.parts);
  if (!is_packed(p)) visit("batch_size", p.batch_size, fresh.batch_size);
  visit(is_packed(p) ? "total_q" : "seqlen_q", p.seqlen_q, kRequired);
  visit("num_heads_q", p.num_heads_q, fresh.num_heads_q);
  visit("head_dim_v", p.head_dim_v, kRequired);
  visit("sink", p.sink, fresh.sink);
  visit("stacked", p.stacked, fresh.stacked);
  visit("softmax_lse", p.softmax_lse, fresh.softmax_lse);
  visit("dlse", p.dlse, fresh.dlse);
  visit("douts", p.douts, fresh.douts);
  visit("dlses", p.dlses, fresh.dlses);
  visit("dsink", p.dsink, fresh.dsink);
  visit("unaligned", p.unaligned, fresh.unaligned);
}

/// Throws for a word that is no key of problems like `problem`, with what was probably meant.
[[noreturn]] void refuse_key(std::string_view key, const MergeProblem& problem);

}  // namespace tilewise::operations::merge
