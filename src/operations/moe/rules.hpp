// Rules about a problem of experts beside its schema: what is allowed, and the one normal form.
#pragma once

#include <cstdint>

#include "core/visibility.hpp"
#include "operations/block_formats.hpp"
#include "tilewise/moe.hpp"

namespace tilewise::operations::moe {

/// Element type of weights and of their gradients.
[[nodiscard]] constexpr DType weight_dtype(const MoeProblem& p) {
  return p.w_format.defined() ? p.w_format.element : p.dtype;
}

/// Rows of gate_up.
[[nodiscard]] constexpr std::int64_t gate_up_rows(const MoeProblem& p) {
  return p.gate == MoeGate::none ? p.intermediate : 2 * p.intermediate;
}

/// Rows of gate_up_out: tokens that an expert has, of every expert.
[[nodiscard]] constexpr std::int64_t pairs_of(const MoeProblem& p) { return p.tokens * p.top_k; }

/// What a clamp is at in problem text that does not say: gpt-oss's.
inline constexpr double kDefaultLimit = 7.0;

/// Multiply-adds of a pass, times 2, with every expert of every token here.
[[nodiscard]] TILEWISE_INTERNAL double flops(const MoeProblem& problem);
/// Bytes that a pass reads and writes at least, with as many experts in use as there can be.
[[nodiscard]] double bytes_moved(const MoeProblem& problem);

/// Throws for formats that x, weights and intermediate values can't have: what scales' shapes are asked of must be
/// known.
void validate_formats(const MoeProblem& problem);
/// As tilewise::validate().
TILEWISE_INTERNAL void validate(const MoeProblem& problem);

/// The one form of all problems that mean the same computation: a matrix of one column, or without elements, lies like
/// any other, and the CPU does not care how rows are aligned. Values that validate() rejects are left alone.
[[nodiscard]] TILEWISE_INTERNAL MoeProblem canonical(MoeProblem problem);

}  // namespace tilewise::operations::moe
