// What a problem of experts may be, its normal form, what it asks of implementations, and the work that it is.
#include "operations/moe/rules.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "core/message.hpp"
#include "core/names.hpp"
#include "operations/derived/shapes.hpp"
#include "operations/elements.hpp"
#include "operations/moe/features.hpp"
#include "operations/moe/params.hpp"
#include "operations/moe/schema.hpp"

namespace tilewise::operations::moe {
namespace {

using core::invalid_argument, core::invalid_type, core::name_of;

void validate_dtypes(const MoeProblem& p) {
  check_row_dtype(p.dtype, p.x_format);
  for (const auto& [name, format] : {std::pair{"w_format", p.w_format}, std::pair{"h_format", p.h_format}})
    if (p.dtype == DType::f64 && format.defined())
      invalid_argument(name, ": must be none where x is f64 (got ", to_string(format), ")");
  if (p.ids_dtype != DType::i32 && p.ids_dtype != DType::i64)
    invalid_type("topk_ids: dtype must be i32 or i64 (got ", to_string(p.ids_dtype), ")");
  check_dtype_beside("topk_weights", p.weights_dtype, p.dtype);
  check_dtype_beside(p.pass == MoePass::moe ? "out" : "dout", p.out_dtype, p.dtype);
  const auto validate_vector = [&p](std::string_view name, MoeVector vector) {
    if (vector != MoeVector::none) check_dtype_beside(name, dtype_of_vector(vector), p.dtype);
  };
  validate_vector("gate_up_bias", p.gate_up_bias);
  validate_vector("down_bias", p.down_bias);
  validate_vector("norm_weight", p.norm);
}

void validate_activation(const MoeProblem& p) {
  const bool oai = p.activation == Activation::swiglu_oai;
  if (oai && p.gate == MoeGate::none) invalid_argument("activation: swiglu_oai requires a gate (got gate=none)");
  if (!std::isfinite(p.alpha)) invalid_argument("alpha: must be finite (got ", p.alpha, ")");
  if (!oai && p.alpha != kSwigluOaiAlpha) {
    invalid_argument("alpha: requires activation=swiglu_oai (got ", p.alpha, " with activation=", name_of(p.activation),
                     ")");
  }
  if (p.clamp == MoeClamp::none && p.limit != 0.0)
    invalid_argument("limit: requires clamp=before or clamp=after (got ", p.limit, " with clamp=none)");
  if (p.clamp != MoeClamp::none && !(p.limit > 0.0 && std::isfinite(p.limit))) {
    invalid_argument("limit: must be > 0 and finite with clamp=", name_of(p.clamp), " (got ", p.limit, ")");
  }
}

void validate_norm(const MoeProblem& p) {
  if (!(p.norm_epsilon >= 0.0 && std::isfinite(p.norm_epsilon)))
    invalid_argument("norm_epsilon: must be >= 0 and finite (got ", p.norm_epsilon, ")");
  if (p.norm == MoeVector::none && p.norm_epsilon != kMoeNormEpsilon)
    invalid_argument("norm_epsilon: requires norm_weight (got ", p.norm_epsilon, " without it)");
}

/// What is saved is for a backward pass.
void validate_saved(const MoeProblem& p) {
  if (!p.save_gate_up) return;
  for (const auto& [name, format] : {std::pair{"x_format", p.x_format}, std::pair{"h_format", p.h_format}}) {
    if (format.defined())
      invalid_argument("save_gate_up: excludes ", name, "=", to_string(format), ", which has no gradients (got both)");
  }
  if (p.norm != MoeVector::none)
    invalid_argument("save_gate_up: excludes norm_weight, which has no gradients (got both)");
  if (p.top_k > 0 && p.tokens > schema::kMostInt32 / p.top_k) {
    invalid_argument("save_gate_up: requires tokens * top_k <= 2^31 - 1 (got ", p.tokens, " * ", p.top_k, ")");
  }
}

/// What belongs to the other pass.
void validate_pass(const MoeProblem& p) {
  if (p.pass == MoePass::moe) {
    const auto refuse = [](bool given, std::string_view name) {
      if (given) invalid_argument(name, ": belongs to moe_backward (got it in moe)");
    };
    refuse(!p.dx, "dx");
    refuse(!p.dtopk_weights, "dtopk_weights");
    refuse(!p.dgate_up, "dgate_up");
    refuse(!p.ddown, "ddown");
    refuse(p.dgate_up_bias, "dgate_up_bias");
    refuse(p.ddown_bias, "ddown_bias");
    refuse(p.dgate_up_transposed, "dgate_up_transposed");
    refuse(p.ddown_transposed, "ddown_transposed");
    return;
  }
  for (const auto& [name, format] : {std::pair{"x_format", p.x_format}, std::pair{"h_format", p.h_format}})
    if (format.defined()) invalid_argument(name, ": belongs to moe (got ", to_string(format), " in moe_backward)");
  if (p.norm != MoeVector::none) invalid_argument("norm_weight: belongs to moe (got it in moe_backward)");
}

void validate_gradients(const MoeProblem& p) {
  if (p.pass == MoePass::moe) return;
  const auto refuse_quantised = [&p](bool wanted, std::string_view name) {
    if (!wanted || !p.w_format.defined()) return;
    invalid_argument(name, ": excludes w_format=", to_string(p.w_format),
                     ", what is quantised has no gradient (got both)");
  };
  refuse_quantised(p.dgate_up, "dgate_up");
  refuse_quantised(p.ddown, "ddown");
  const auto require = [](bool given, bool other, std::string_view name, std::string_view other_name) {
    if (given && !other) invalid_argument(name, ": requires ", other_name, " (got none)");
  };
  require(p.dgate_up_transposed, p.dgate_up, "dgate_up_transposed", "dgate_up");
  require(p.ddown_transposed, p.ddown, "ddown_transposed", "ddown");
  require(p.dgate_up_bias, p.gate_up_bias != MoeVector::none, "dgate_up_bias", "gate_up_bias");
  require(p.ddown_bias, p.down_bias != MoeVector::none, "ddown_bias", "down_bias");
  if (!(p.dx || p.dtopk_weights || p.dgate_up || p.ddown || p.dgate_up_bias || p.ddown_bias))
    invalid_argument("dx: at least one gradient must be given (got none)");
}

double size_in_bytes(DType dtype) { return static_cast<double>(bits_of(dtype)) / 8.0; }

/// The one form of whether matrices [num_experts, rows, columns] are transposed: never where the last dimension is
/// contiguous anyway.
bool canonical_transposed(bool transposed, std::int64_t experts, std::int64_t rows, std::int64_t columns) {
  return transposed && experts > 0 && rows > 0 && columns > 1;
}

}  // namespace

void validate_formats(const MoeProblem& p) {
  check_row_format("x_format", p.x_format);
  check_weight_format("w_format", p.w_format);
  if (!is_known(p.h_format) || (p.h_format.defined() && !is_h_format(p.h_format))) {
    invalid_argument("h_format: must be none, fp8_row, fp8_1x128, fp8_1x128_e8m0 or mxfp8 (got ", to_string(p.h_format),
                     ")");
  }
  if (p.x_format.defined() && !p.w_format.defined())
    invalid_argument("w_format: must be given with x_format=", to_string(p.x_format), " (got none)");
  if (p.h_format.defined() && !p.w_format.defined())
    invalid_argument("w_format: must be given with h_format=", to_string(p.h_format), " (got none)");
}

void validate(const MoeProblem& p) {
  validate_formats(p);
  validate_dtypes(p);
  validate_activation(p);
  validate_norm(p);
  schema::check_sizes<kSchema>(p);
  if (p.first_expert < 0) invalid_argument("first_expert: must be >= 0 (got ", p.first_expert, ")");
  const auto refuse_transposed = [&p](bool transposed, std::string_view name, std::string_view last) {
    if (!transposed || p.w_format.element != DType::fp4_e2m1) return;
    invalid_argument(name, ": ", last, " must be contiguous with w_format=", to_string(p.w_format),
                     ", of which two elements along it share a byte (got it transposed)");
  };
  refuse_transposed(p.gate_up_transposed, "gate_up", "hidden");
  refuse_transposed(p.down_transposed, "down", "intermediate");
  validate_pass(p);
  validate_saved(p);
  validate_gradients(p);
}

double flops(const MoeProblem& p) {
  const double parts = static_cast<double>(p.tokens) * static_cast<double>(p.top_k);
  const double hidden = static_cast<double>(p.hidden);
  const double gate_up = 2.0 * parts * static_cast<double>(gate_up_rows(p)) * hidden;
  const double down = 2.0 * parts * hidden * static_cast<double>(p.intermediate);
  if (p.pass == MoePass::moe) return gate_up + down;
  const bool more = p.dx || p.dgate_up || p.dgate_up_bias || p.dtopk_weights;  // than what the second weights are
  return gate_up * ((p.save_gate_up ? 0.0 : 1.0) + (p.dx || (p.dtopk_weights && p.weight_on_input) ? 1.0 : 0.0) +
                    (p.dgate_up ? 1.0 : 0.0)) +
         down * ((more ? 1.0 : 0.0) + (p.ddown ? 1.0 : 0.0));
}

double bytes_moved(const MoeProblem& p) {
  const double tokens = static_cast<double>(p.tokens), hidden = static_cast<double>(p.hidden);
  const double experts = static_cast<double>(p.num_experts);
  const double used = std::min(experts, tokens * static_cast<double>(p.top_k));
  const double gate_up = static_cast<double>(gate_up_rows(p)) * hidden * size_in_bytes(weight_dtype(p));
  const double down = static_cast<double>(p.intermediate) * hidden * size_in_bytes(weight_dtype(p));
  const double rows = tokens * hidden * (size_in_bytes(p.dtype) + size_in_bytes(p.out_dtype));
  const double saved = p.save_gate_up ? static_cast<double>(pairs_of(p)) * static_cast<double>(gate_up_rows(p)) : 0.0;
  const double forward = rows + used * (gate_up + down) + saved * size_in_bytes(p.dtype);
  if (p.pass == MoePass::moe) return forward;
  return forward + (p.dx ? tokens * hidden * size_in_bytes(p.dtype) : 0.0) +
         experts * ((p.dgate_up ? gate_up : 0.0) + (p.ddown ? down : 0.0));
}

MoeProblem canonical(MoeProblem p) {
  const auto form = [&p](bool transposed, std::int64_t of_rows, std::int64_t columns) {
    return canonical_transposed(transposed, p.num_experts, of_rows, columns);
  };
  p.gate_up_transposed = form(p.gate_up_transposed, p.intermediate, p.hidden);
  p.dgate_up_transposed = form(p.dgate_up_transposed, p.intermediate, p.hidden);
  p.down_transposed = form(p.down_transposed, p.hidden, p.intermediate);
  p.ddown_transposed = form(p.ddown_transposed, p.hidden, p.intermediate);
  if (p.device == DeviceType::cpu) p.unaligned = false;
  return p;
}

FeatureSet required_features(const MoeProblem& p) {
  // Every field by name: a new one does not compile until somebody has decided here what it asks for.
  [[maybe_unused]] const auto& [pass, dtype, out_dtype, ids_dtype, weights_dtype, device, x_format, w_format, h_format,
                                tokens, hidden, intermediate, num_experts, top_k, first_expert, gate, activation, alpha,
                                clamp, limit, gate_up_bias, down_bias, norm, norm_epsilon, weight_on_input,
                                batch_invariant, save_gate_up, gate_up_transposed, down_transposed, dx, dgate_up, ddown,
                                dtopk_weights, dgate_up_bias, ddown_bias, dgate_up_transposed, ddown_transposed,
                                unaligned] = p;
  const bool backward = pass == MoePass::moe_backward;
  FeatureSet set{backward ? Feature::backward : Feature::forward};
  const auto need = [&set](Feature feature, bool needed) {
    if (needed) set.insert(feature);
  };
  need(Feature::x_quantised, x_format.defined());
  need(feature_of(dtype), !x_format.defined());
  need(Feature::h_quantised, h_format.defined());
  for (const BlockFormat& format : {x_format, w_format, h_format}) insert_format(set, format);
  need(Feature::out_dtype, out_dtype != dtype && !x_format.defined());
  need(Feature::no_gate, gate == MoeGate::none);
  need(Feature::interleaved, gate == MoeGate::interleaved);
  need(Feature::activation, activation != Activation::silu && activation != Activation::swiglu_oai);
  need(Feature::swiglu_oai, activation == Activation::swiglu_oai);
  need(Feature::clamp, clamp != MoeClamp::none);
  need(Feature::bias, gate_up_bias != MoeVector::none || down_bias != MoeVector::none);
  need(Feature::norm, norm != MoeVector::none);
  need(Feature::weight_on_input, weight_on_input);
  need(Feature::first_expert, first_expert != 0);
  need(Feature::transposed,
       gate_up_transposed || down_transposed || (backward && (dgate_up_transposed || ddown_transposed)));
  need(Feature::batch_invariant, batch_invariant);
  need(Feature::save_gate_up, save_gate_up);
  need(Feature::dx, backward && dx);
  need(Feature::dtopk_weights, backward && dtopk_weights);
  need(Feature::dweights, backward && (dgate_up || ddown));
  need(Feature::dbias, backward && (dgate_up_bias || ddown_bias));
  return set;
}

}  // namespace tilewise::operations::moe
