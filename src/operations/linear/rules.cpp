// What a linear problem may be, its normal form, what it asks of implementations, and the work that it is.
#include "operations/linear/rules.hpp"

#include <string_view>

#include "core/message.hpp"
#include "core/names.hpp"
#include "formats/field.hpp"
#include "operations/derived/shapes.hpp"
#include "operations/elements.hpp"
#include "operations/linear/features.hpp"
#include "operations/linear/schema.hpp"

namespace tilewise::operations::linear {
namespace {

using core::invalid_argument, core::invalid_type, core::name_of;

void validate_dtypes(const LinearProblem& p) {
  check_row_dtype(p.dtype, p.x_format);
  if (p.dtype == DType::f64 && p.w_format.defined())
    invalid_argument("w_format: must be none where x is f64 (got ", to_string(p.w_format), ")");
  check_dtype_beside(p.pass == LinearPass::linear ? "out" : "dout", p.out_dtype, p.dtype);
  if (p.bias != LinearBias::none) check_dtype_beside("bias", dtype_of_vector(p.bias), p.dtype);
}

void validate_gradients(const LinearProblem& p) {
  const bool forward = p.pass == LinearPass::linear;
  if (forward) {
    const auto refuse = [](bool given, std::string_view name) {
      if (given) invalid_argument(name, ": belongs to linear_backward (got it in linear)");
    };
    refuse(!p.dx, "dx");
    refuse(p.dw == false, "dw");
    refuse(p.dbias, "dbias");
    refuse(p.dw_transposed, "dw_transposed");
    return;
  }
  if (p.x_format.defined())
    invalid_argument("x_format: belongs to linear (got ", to_string(p.x_format), " in linear_backward)");
  if (p.dw && p.w_format.defined())
    invalid_argument("dw: excludes w_format=", to_string(p.w_format), ", what is quantised has no gradient (got both)");
  if (p.dw_transposed && !p.dw) invalid_argument("dw_transposed: requires dw (got none)");
  if (p.dbias && p.bias == LinearBias::none) invalid_argument("dbias: requires bias (got none)");
  if (!(p.dx || p.dw || p.dbias)) invalid_argument("dx: at least one of dx, dw and dbias must be given (got none)");
}

double size_in_bytes(DType dtype) { return static_cast<double>(bits_of(dtype)) / 8.0; }

/// The one form of whether a matrix [experts, n, k] is transposed: never where its last dimension is contiguous anyway.
bool canonical_transposed(const LinearProblem& p, bool transposed) {
  return transposed && p.k > 1 && p.n > 0 && (p.num_experts > 0 || !is_grouped(p));
}

}  // namespace

void validate_formats(const LinearProblem& p) {
  check_row_format("x_format", p.x_format);
  check_weight_format("w_format", p.w_format);
  if (p.x_format.defined() && !p.w_format.defined())
    invalid_argument("w_format: must be given with x_format=", to_string(p.x_format), " (got none)");
}

void validate(const LinearProblem& p) {
  validate_formats(p);
  validate_dtypes(p);
  if (p.activation == Activation::swiglu_oai)
    invalid_argument("activation: must have one argument, swiglu_oai is of a gate and what it gates (got swiglu_oai)");
  if (!is_grouped(p) && p.num_experts != 1)
    invalid_argument("num_experts: must be 1 with groups=none (got ", p.num_experts, ")");
  schema::check_sizes<kSchema>(p);
  if (p.w_transposed && p.w_format.element == DType::fp4_e2m1) {
    invalid_argument("w: k must be contiguous with w_format=", to_string(p.w_format),
                     ", of which two elements along k share a byte (got n contiguous)");
  }
  validate_gradients(p);
}

double flops(const LinearProblem& p) {
  const double forward = 2.0 * static_cast<double>(p.tokens) * static_cast<double>(p.n) * static_cast<double>(p.k);
  if (p.pass == LinearPass::linear) return forward;
  const bool again = p.activation != Activation::identity;  // its argument
  return forward * ((again ? 1.0 : 0.0) + (p.dx ? 1.0 : 0.0) + (p.dw ? 1.0 : 0.0));
}

double bytes_moved(const LinearProblem& p) {
  const double tokens = static_cast<double>(p.tokens), n = static_cast<double>(p.n), k = static_cast<double>(p.k);
  const double touched = std::min(static_cast<double>(p.num_experts), std::max(tokens, 1.0));
  const double weights = n * k * size_in_bytes(w_dtype(p));
  const double rows = tokens * (k * size_in_bytes(p.dtype) + n * size_in_bytes(p.out_dtype));
  if (p.pass == LinearPass::linear) return rows + touched * weights;
  return rows + touched * weights + (p.dx ? tokens * k * size_in_bytes(p.dtype) : 0.0) +
         (p.dw ? static_cast<double>(p.num_experts) * weights : 0.0);
}

LinearProblem canonical(LinearProblem p) {
  p.w_transposed = canonical_transposed(p, p.w_transposed);
  p.dw_transposed = canonical_transposed(p, p.dw_transposed);
  if (p.device == DeviceType::cpu) p.unaligned = false;
  return p;
}

FeatureSet required_features(const LinearProblem& p) {
  // Every field by name: a new one does not compile until somebody has decided here what it asks for.
  [[maybe_unused]] const auto& [pass, dtype, out_dtype, device, x_format, w_format, tokens, n, k, num_experts, groups,
                                bias, activation, batch_invariant, w_transposed, dx, dw, dbias, dw_transposed,
                                unaligned] = p;
  const bool backward = pass == LinearPass::linear_backward;
  FeatureSet set{backward ? Feature::backward : Feature::forward};
  const auto need = [&set](Feature feature, bool needed) {
    if (needed) set.insert(feature);
  };
  need(Feature::x_quantised, x_format.defined());
  need(feature_of(dtype), !x_format.defined());
  insert_format(set, x_format);
  insert_format(set, w_format);
  need(Feature::out_dtype, out_dtype != dtype && !x_format.defined());
  need(Feature::grouped, groups != LinearGroups::none);
  need(Feature::bias, bias != LinearBias::none);
  need(Feature::activation, activation != Activation::identity);
  need(Feature::w_transposed, w_transposed || (backward && dw_transposed));
  need(Feature::batch_invariant, batch_invariant);
  need(Feature::dx, backward && dx);
  need(Feature::backward_quantised, backward && w_format.defined());
  need(Feature::dw, backward && dw);
  need(Feature::dbias, backward && dbias);
  return set;
}

}  // namespace tilewise::operations::linear
