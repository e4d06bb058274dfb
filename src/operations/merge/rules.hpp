// Rules about a merge problem beside its schema: element types, what is allowed, and the one normal form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/visibility.hpp"
#include "operations/elements.hpp"
#include "tilewise/merge.hpp"

namespace tilewise::operations::merge {

inline constexpr std::int64_t kMaxHeadDimV = 512;

[[nodiscard]] constexpr bool is_packed(const MergeProblem& problem) { return problem.layout == Layout::thd; }

/// Of parts that all have the same element type; mixed has none.
[[nodiscard]] constexpr PartsDType parts_dtype_of(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return PartsDType::bf16;
    case DType::f16:
      return PartsDType::f16;
    case DType::f64:
      return PartsDType::f64;
    default:
      return PartsDType::f32;
  }
}

/// The element type of all parts; DType::none where they are mixed.
[[nodiscard]] constexpr DType dtype_of(PartsDType parts) {
  switch (parts) {
    case PartsDType::f32:
      return DType::f32;
    case PartsDType::bf16:
      return DType::bf16;
    case PartsDType::f16:
      return DType::f16;
    case PartsDType::f64:
      return DType::f64;
    case PartsDType::mixed:
      break;
  }
  return DType::none;
}

/// Element type of part n, its gradient too. Of mixed parts every second one is f32.
[[nodiscard]] constexpr DType part_dtype(const MergeProblem& p, std::size_t n) {
  if (p.parts_dtype != PartsDType::mixed) return dtype_of(p.parts_dtype);
  return n % 2 == 0 ? p.dtype : DType::f32;
}
/// Of a problem that knows its dtype.
TILEWISE_INTERNAL void note_parts(MergeProblem& problem, std::span<const TensorView> outs);

/// Element type of a sink and of its gradient, where there is one.
[[nodiscard]] constexpr DType sink_dtype(const MergeProblem& p) {
  return p.sink == MergeSink::query ? p.dtype : DType::f32;
}

/// Rows of out: one for each batch entry, query and head. Of a validated problem, so that it fits.
[[nodiscard]] constexpr std::int64_t rows_of(const MergeProblem& p) {
  return p.batch_size * p.seqlen_q * p.num_heads_q;
}

/// Bytes that a pass reads and writes at least, for estimates.
[[nodiscard]] double bytes_moved(const MergeProblem& problem);

/// As tilewise::validate().
TILEWISE_INTERNAL void validate(const MergeProblem& problem);

/// The one form of all problems that mean the same computation: a sink of f32's dtype is just f32, and the CPU does
/// not care how rows are aligned. Values that validate() rejects are left alone.
[[nodiscard]] TILEWISE_INTERNAL MergeProblem canonical(MergeProblem problem);

}  // namespace tilewise::operations::merge
