// From tensors to a problem and to what kernels take.
#include "operations/moe/call.hpp"

#include "core/message.hpp"
#include "core/names.hpp"
#include "operations/derived/describe.hpp"
#include "operations/matrix_views.hpp"
#include "operations/moe/rules.hpp"

namespace tilewise::operations::moe {
namespace {

device::GateLayout layout_of(MoeGate gate) {
  if (gate == MoeGate::none) return device::GateLayout::none;
  return gate == MoeGate::concatenated ? device::GateLayout::concatenated : device::GateLayout::interleaved;
}

device::ActivationClamp clamp_of(MoeClamp clamp) {
  if (clamp == MoeClamp::none) return device::ActivationClamp::none;
  return clamp == MoeClamp::before ? device::ActivationClamp::before : device::ActivationClamp::after;
}

/// Weights with their scales.
ExpertMatrices weights_of(const TensorView& view, bool transposed, const TensorView& scale, const TensorView& global,
                          const BlockFormat& format) {
  ExpertMatrices w = expert_matrices_of(view, transposed);
  w.scales = block_scales_of(scale, format, w.rows, w.columns);
  w.expert_scales = vector_of(global);
  return w;
}

}  // namespace

MoeProblem describe(const Call& call) {
  const MoeProblem& stated = call.stated();
  (void)core::value_at<MoeGate>("gate", static_cast<std::int64_t>(stated.gate));
  validate_formats(stated);
  const DType given = call.one("out").dtype;
  if (stated.out_dtype != DType::none && given != DType::none && given != stated.out_dtype)
    core::invalid_type("out: dtype must be out_dtype, ", to_string(stated.out_dtype), " (got ", to_string(given), ")");
  return canonical(schema::Describer(call).describe());
}

MoeParams make_params(const Call& call, const MoeProblem& p) {
  MoeParams params{};
  params.x = matrix_of(call.one("x"));
  params.x_scales = block_scales_of(call.one("x_scale"), p.x_format, p.tokens, p.hidden);
  params.topk_ids = matrix_of(call.one("topk_ids"));
  params.topk_weights = matrix_of(call.one("topk_weights"));
  params.gate_up = weights_of(call.one("gate_up"), p.gate_up_transposed, call.one("gate_up_scale"),
                              call.one("gate_up_global_scale"), p.w_format);
  params.down = weights_of(call.one("down"), p.down_transposed, call.one("down_scale"), call.one("down_global_scale"),
                           p.w_format);
  params.gate_up_bias = expert_vectors_of(call.one("gate_up_bias"));
  params.down_bias = expert_vectors_of(call.one("down_bias"));
  params.norm_weight = expert_vectors_of(call.one("norm_weight"));
  params.norm_epsilon = p.norm_epsilon;
  params.gate_layout = layout_of(p.gate);
  params.activation = {kind_of(p.activation), clamp_of(p.clamp), p.alpha, p.limit};
  params.first_expert = p.first_expert;
  params.weight_on_input = p.weight_on_input;
  params.batch_invariant = p.batch_invariant;
  params.h_format = p.h_format;

  params.out = matrix_of(call.one("out"));
  params.gate_up_out = matrix_of(call.one("gate_up_out"));
  params.dout = matrix_of(call.one("dout"));
  params.dx = matrix_of(call.one("dx"));
  params.dtopk_weights = matrix_of(call.one("dtopk_weights"));
  params.dgate_up = expert_matrices_of(call.one("dgate_up"), p.dgate_up_transposed);
  params.ddown = expert_matrices_of(call.one("ddown"), p.ddown_transposed);
  params.dgate_up_bias = expert_vectors_of(call.one("dgate_up_bias"));
  params.ddown_bias = expert_vectors_of(call.one("ddown_bias"));
  return params;
}

}  // namespace tilewise::operations::moe
