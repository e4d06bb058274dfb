// The limits of every field of a merge problem and the fields that exclude each other.
#include "operations/merge/validate.hpp"

#include <cstdint>
#include <limits>
#include <string_view>

#include "core/message.hpp"
#include "core/names.hpp"
#include "operations/merge/names.hpp"
#include "operations/merge/rules.hpp"

namespace tilewise::operations::merge {
namespace {

using core::invalid_argument, core::invalid_type, core::name_of;

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

void check_range(std::string_view field, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low) invalid_argument(field, " must be >= ", low, " (got ", value, ")");
  if (value > high) invalid_argument(field, " must be <= ", high, " (got ", value, ")");
}

void validate_sizes(const MergeProblem& p) {
  check_range("parts:", p.parts, 1, kMaxInt32);
  check_range("out: batch_size", p.batch_size, 0, kMaxInt32);
  check_range(is_packed(p) ? "out: total_q" : "out: seqlen_q", p.seqlen_q, 0, kMaxInt32);
  check_range("out: num_heads_q", p.num_heads_q, 0, kMaxInt32);
  if (p.head_dim_v < 1 || p.head_dim_v > kMaxHeadDimV) {
    invalid_argument("out: head_dim_v must be 1 to ", kMaxHeadDimV, " (got ", p.head_dim_v, ")");
  }
  std::int64_t bytes = 8;
  bool overflow = false;
  for (const std::int64_t size : {p.parts, p.batch_size, p.seqlen_q, p.num_heads_q, p.head_dim_v}) {
    if (size == 0) return;
    overflow |= __builtin_mul_overflow(bytes, size, &bytes);
  }
  if (!overflow) return;
  invalid_argument("outs: must have less than 2^60 elements (got ", p.parts, " * ", p.batch_size, " * ", p.seqlen_q,
                   " * ", p.num_heads_q, " * ", p.head_dim_v, ")");
}

void validate_parts_dtype(const MergeProblem& p) {
  const PartsDType own = parts_dtype_of(p.dtype);
  if (p.parts_dtype == own) return;
  const bool narrow = p.dtype == DType::bf16 || p.dtype == DType::f16;
  if (narrow && (p.parts_dtype == PartsDType::f32 || p.parts_dtype == PartsDType::mixed)) {
    if (p.parts_dtype == PartsDType::mixed && p.parts < 2) {
      invalid_argument("parts_dtype: mixed requires parts >= 2 (got ", p.parts, ")");
    }
    if (p.parts_dtype == PartsDType::mixed && p.stacked) {
      invalid_argument("parts_dtype: mixed excludes stacked, one tensor has one dtype (got both)");
    }
    return;
  }
  invalid_argument("parts_dtype: must be ", name_of(own), narrow ? ", f32 or mixed" : "",
                   " with dtype=", to_string(p.dtype), " (got ", name_of(p.parts_dtype), ")");
}

void validate_gradients(const MergeProblem& p) {
  if (p.pass == MergePass::merge) {
    const auto refuse = [](bool given, std::string_view name) {
      if (given) invalid_argument(name, ": belongs to merge_backward (got it in merge)");
    };
    refuse(p.dlse, "dlse");
    refuse(!p.douts, "douts");
    refuse(!p.dlses, "dlses");
    refuse(p.dsink, "dsink");
    return;
  }
  if (!p.softmax_lse) invalid_argument("softmax_lse: belongs to merge (got it in merge_backward)");
  if (p.dsink && p.sink == MergeSink::none) invalid_argument("dsink: requires sink (got none)");
  if (!(p.douts || p.dlses || p.dsink)) {
    invalid_argument("douts: at least one of douts, dlses and dsink must be given (got none)");
  }
}

}  // namespace

void validate_dtype(DType dtype) {
  if (!is_element_type(dtype)) {
    invalid_type("out: dtype must be f32, bf16, f16 or f64 (got ", to_string(dtype), ")");
  }
}

void validate(const MergeProblem& problem) {
  validate_dtype(problem.dtype);
  validate_sizes(problem);
  validate_parts_dtype(problem);
  validate_gradients(problem);
}

}  // namespace tilewise::operations::merge
