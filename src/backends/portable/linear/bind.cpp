// See bind.hpp.
#include "backends/portable/linear/bind.hpp"

#include "backends/portable/product/operand.hpp"

namespace tilewise::backends::portable {
namespace {

using operations::BlockScales, operations::ExpertVectors, operations::Matrix;
using operations::linear::LinearParams;

void bind_operand(const LinearParams& call, device::ProductOperand& to) {
  switch (to.role) {
    case device::kLinearX:
      return bind_rows(call.x, call.x_scales, to);
    case device::kLinearDout:
      return bind_lines(call.dout, to);
    case device::kLinearW:
    case device::kLinearWBack:
      return bind_weights(call.w, to.role == device::kLinearWBack, to);
    default:  // in the workspace
      return;
  }
}

void bind_matrix(const LinearParams& call, device::LinearMatrix& to) {
  const auto rows = [&](const Matrix& m) {
    to.data = m.data;
    to.row_stride = m.row_stride;
  };
  switch (to.role) {
    case device::kLinearOut:
      return rows(call.out);
    case device::kLinearDout:
      return rows(call.dout);
    case device::kLinearDx:
      return rows(call.dx);
    case device::kLinearDw:
      to.data = call.dw.data;
      to.expert_stride = call.dw.expert_stride;
      to.row_stride = call.dw.column_stride == 1 ? call.dw.row_stride : call.dw.column_stride;
      return;
    default:
      return;
  }
}

void bind_groups(const LinearParams& call, device::ProductGroups& to) {
  to.data = call.groups.data;
  to.stride = call.groups.stride;
}

}  // namespace

void bind(const LinearParams& call, device::LinearEpilogueParams& p) {
  bind_groups(call, p.groups);
  if (p.row_scale.given) p.row_scale.data = call.x_scales.data, p.row_scale.stride = call.x_scales.row_stride;
  if (p.row_scale.size == 1) p.row_scale.stride = 0;
  if (p.column_scale.given) {
    const BlockScales& scales = call.w.scales;
    p.column_scale.data = scales.data;
    p.column_scale.expert_stride = scales.expert_stride;
    p.column_scale.stride = p.column_scale.size == 1 ? 0 : scales.row_stride;
  }
  if (p.expert_scale.given)
    p.expert_scale.data = call.w.expert_scales.data, p.expert_scale.expert_stride = call.w.expert_scales.stride;
  if (p.bias.given) {
    const ExpertVectors& bias = call.bias;
    p.bias.data = bias.data, p.bias.expert_stride = bias.expert_stride, p.bias.stride = bias.stride;
  }
  bind_matrix(call, p.dout);
  bind_matrix(call, p.out);
}

void bind(const LinearParams& call, device::LinearProductParams& p) {
  bind_operand(call, p.a);
  bind_operand(call, p.b);
  bind(call, p.epilogue);
}

void bind(const LinearParams& call, device::LinearDwParams& p) {
  bind_groups(call, p.groups);
  bind_operand(call, p.a);
  bind_operand(call, p.b);
  bind_matrix(call, p.out);
}

void bind(const LinearParams& call, device::LinearDbiasParams& p) {
  bind_groups(call, p.groups);
  bind_matrix(call, p.dout);
  p.out = call.dbias.data;
  p.expert_stride = call.dbias.expert_stride;
  p.stride = call.dbias.stride;
}

}  // namespace tilewise::backends::portable
