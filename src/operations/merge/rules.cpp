// What a merge problem may be, its normal form, what it asks of implementations, and the memory that it moves.
#include "operations/merge/rules.hpp"

#include <string_view>

#include "core/message.hpp"
#include "core/names.hpp"
#include "operations/derived/shapes.hpp"
#include "operations/merge/features.hpp"
#include "operations/merge/schema.hpp"

namespace tilewise::operations::merge {
namespace {

using core::invalid_argument, core::invalid_type, core::name_of;

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

void note_parts(MergeProblem& p, std::span<const TensorView> outs) {
  bool wide = false, narrow = false;
  for (const TensorView& out : outs) (out.dtype == p.dtype ? narrow : wide) = true;
  p.parts_dtype = wide && narrow ? PartsDType::mixed : wide ? PartsDType::f32 : parts_dtype_of(p.dtype);
}

void validate(const MergeProblem& problem) {
  if (!is_element_type(problem.dtype)) {
    invalid_type("out: dtype must be f32, bf16, f16 or f64 (got ", to_string(problem.dtype), ")");
  }
  validate_parts_dtype(problem);
  schema::check_sizes<kSchema>(problem);
  validate_gradients(problem);
}

double bytes_moved(const MergeProblem& p) {
  const auto size = [](DType dtype) { return static_cast<double>(size_of(dtype)); };
  const DType statistics = statistics_dtype(p.dtype);
  const double part = size(p.parts_dtype == PartsDType::mixed ? statistics : dtype_of(p.parts_dtype));
  const double rows =
      static_cast<double>(p.batch_size) * static_cast<double>(p.seqlen_q) * static_cast<double>(p.num_heads_q);
  const double parts = static_cast<double>(p.parts), dim = static_cast<double>(p.head_dim_v);
  const double once = rows * (dim * size(p.dtype) + size(statistics));  // out or dout, and its log-sum-exp
  const double each = rows * (dim * part + size(statistics)) * parts;   // the parts
  const bool backward = p.pass == MergePass::merge_backward;
  return once + each * (backward && p.douts ? 2.0 : 1.0);
}

MergeProblem canonical(MergeProblem p) {
  if (p.sink == MergeSink::query && p.dtype == DType::f32) p.sink = MergeSink::f32;
  if (p.device == DeviceType::cpu) p.unaligned = false;
  return p;
}

FeatureSet required_features(const MergeProblem& p) {
  // Every field by name: a new one does not compile until somebody has decided here what it asks for.
  [[maybe_unused]] const auto& [pass, dtype, parts_dtype, device, layout, parts, batch_size, seqlen_q, num_heads_q,
                                head_dim_v, sink, stacked, softmax_lse, dlse, douts, dlses, dsink, unaligned] = p;
  FeatureSet set{feature_of(dtype)};
  const auto need = [&set](Feature feature, bool needed) {
    if (needed) set.insert(feature);
  };
  need(Feature::forward, pass == MergePass::merge);
  need(Feature::backward, pass == MergePass::merge_backward);
  need(Feature::f32_parts, parts_dtype == PartsDType::f32 && dtype != DType::f32);
  need(Feature::mixed_parts, parts_dtype == PartsDType::mixed);
  need(Feature::packed, layout == Layout::thd);
  need(Feature::stacked, stacked);
  need(Feature::sink, sink != MergeSink::none);
  need(Feature::dlse, dlse);
  need(Feature::dsink, dsink);
  return set;
}

}  // namespace tilewise::operations::merge
