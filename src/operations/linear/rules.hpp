// Rules about a linear problem beside its schema: what is allowed, and the one normal form.
#pragma once

#include <cstdint>

#include "core/visibility.hpp"
#include "operations/block_formats.hpp"
#include "tilewise/linear.hpp"

namespace tilewise::operations::linear {

[[nodiscard]] constexpr bool is_grouped(const LinearProblem& p) { return p.groups != LinearGroups::none; }
[[nodiscard]] constexpr bool is_counted(const LinearProblem& p) {
  return p.groups == LinearGroups::counts_i32 || p.groups == LinearGroups::counts_i64;
}

/// Element type of w and of its gradient.
[[nodiscard]] constexpr DType w_dtype(const LinearProblem& p) {
  return p.w_format.defined() ? p.w_format.element : p.dtype;
}

/// Multiply-adds of a pass, times 2, with all rows in groups.
[[nodiscard]] TILEWISE_INTERNAL double flops(const LinearProblem& problem);
/// Bytes that a pass reads and writes at least.
[[nodiscard]] double bytes_moved(const LinearProblem& problem);

/// Throws for formats that x and w can't have: what scales' shapes are asked of must be known.
void validate_formats(const LinearProblem& problem);
/// As tilewise::validate().
TILEWISE_INTERNAL void validate(const LinearProblem& problem);

/// The one form of all problems that mean the same computation: a matrix of one column, or without elements, lies like
/// any other, and the CPU does not care how rows are aligned. Values that validate() rejects are left alone.
[[nodiscard]] TILEWISE_INTERNAL LinearProblem canonical(LinearProblem problem);

}  // namespace tilewise::operations::linear
