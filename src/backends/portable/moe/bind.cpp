// A call's tensors in the blocks of its kernels.
#include "backends/portable/moe/kernels.hpp"
#include "backends/portable/product/operand.hpp"
#include "backends/portable/product/schedule.hpp"

namespace tilewise::backends::portable {
namespace {

using device::ExpertSums, device::PairTensor, device::ProductOperand, device::ProductVector;
using operations::ExpertMatrices, operations::ExpertVectors, operations::Matrix, operations::moe::MoeParams;

PairTensor ids_of(const Matrix& m) {
  return {m.data, m.row_stride, m.column_stride, static_cast<std::int32_t>(size_of(m.dtype)), 0};
}
PairTensor weights_of(const Matrix& m) { return {m.data, m.row_stride, m.column_stride, bias_type_of(m.dtype), 0}; }

/// Nothing where it lies in the workspace.
void bind_operand(const MoeParams& call, ProductOperand& to) {
  switch (to.role) {
    case device::kExpertX:
      return bind_rows(call.x, call.x_scales, to);
    case device::kExpertDout:
      return bind_lines(call.dout, to);
    case device::kExpertGateUp:
    case device::kExpertGateUpBack:
      return bind_weights(call.gate_up, to.role == device::kExpertGateUpBack, to);
    case device::kExpertDown:
    case device::kExpertDownBack:
      return bind_weights(call.down, to.role == device::kExpertDownBack, to);
    default:
      return;
  }
}

void bind_vector(const ExpertVectors& from, ProductVector& to) {
  if (to.given == 0) return;
  to.data = from.data, to.expert_stride = from.expert_stride, to.stride = from.stride;
}

/// Factors of the sums of rows of these weights. A scale of all rows or columns has a stride of 0.
void bind_sums(const ExpertMatrices& weights, const ExpertVectors& bias, ExpertSums& to) {
  if (to.column_scale.given != 0) {
    to.column_scale.data = weights.scales.data, to.column_scale.expert_stride = weights.scales.expert_stride;
    to.column_scale.stride = to.column_scale.size == 1 ? 0 : weights.scales.row_stride;
  }
  if (to.expert_scale.given != 0)
    to.expert_scale.data = weights.expert_scales.data, to.expert_scale.expert_stride = weights.expert_scales.stride;
  bind_vector(bias, to.bias);
}

/// Strides of weights' gradients whose lines are rows or columns, whichever is contiguous.
void bind_gradient(const ExpertMatrices& from, device::ExpertDwParams& to) {
  to.out = from.data;
  to.expert_stride = from.expert_stride;
  to.row_stride = from.column_stride == 1 ? from.row_stride : from.column_stride;
}

}  // namespace

void bind(const MoeParams& call, device::ExpertSortParams& p) {
  p.topk_ids = ids_of(call.topk_ids);
  p.topk_weights = weights_of(call.topk_weights);
}

void bind(const MoeParams& call, device::ExpertUpParams& p) {
  bind_operand(call, p.a);
  bind_operand(call, p.b);
  bind_sums(call.gate_up, call.gate_up_bias, p.sums);
  if (p.sums.row_scale.given == 0) return;
  p.sums.row_scale.data = call.x_scales.data;
  p.sums.row_scale.stride = p.sums.row_scale.size == 1 ? 0 : call.x_scales.row_stride;
}

void bind(const MoeParams& call, device::ExpertRowsParams& p) {
  bind_operand(call, p.a);
  bind_operand(call, p.b);
  const bool down = p.b.role == device::kExpertDown || p.b.role == device::kExpertDownBack;
  bind_sums(down ? call.down : call.gate_up, call.down_bias, p.sums);
}

void bind(const MoeParams& call, device::ExpertDwParams& p) {
  for (ProductOperand* operand : {&p.a, &p.b}) {
    if (operand->role == device::kExpertX) bind_lines(call.x, *operand);
    if (operand->role == device::kExpertDout) bind_lines(call.dout, *operand);
  }
  bind_gradient(p.out_role == device::kExpertDdown ? call.ddown : call.dgate_up, p);
}

void bind(const MoeParams& call, device::ExpertDbiasParams& p) {
  const ExpertVectors& out = p.out_role == device::kExpertDdownBias ? call.ddown_bias : call.dgate_up_bias;
  if (p.from_role == device::kExpertDout) p.from = call.dout.data, p.from_stride = call.dout.row_stride;
  p.out = out.data, p.expert_stride = out.expert_stride, p.stride = out.stride;
}

void bind(const MoeParams& call, device::ExpertDweightsParams& p) {
  if (p.bias.given != 0) p.dout = call.dout.data, p.dout_stride = call.dout.row_stride;
  bind_vector(call.down_bias, p.bias);
  p.out = call.dtopk_weights.data;
  p.token_stride = call.dtopk_weights.row_stride, p.slot_stride = call.dtopk_weights.column_stride;
}

void bind(const MoeParams&, device::ExpertNormParams&) {}

void bind(const MoeParams& call, device::ExpertCombineParams& p) {
  const Matrix& out = p.out_role == device::kExpertDx ? call.dx : call.out;
  p.topk_ids = ids_of(call.topk_ids);
  bind_vector(call.norm_weight, p.norm);
  p.out = out.data, p.out_stride = out.row_stride;
}

}  // namespace tilewise::backends::portable
