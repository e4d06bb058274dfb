// From tensors to a problem and to what kernels take.
#include "operations/linear/call.hpp"

#include <algorithm>

#include "core/message.hpp"
#include "operations/derived/describe.hpp"
#include "operations/linear/rules.hpp"

namespace tilewise::operations::linear {
namespace {

Matrix matrix_of(const TensorView& view) {
  return {view.data, view.dtype, view.shape[0], view.shape[1], view.strides[0], view.strides[1]};
}

Vector vector_of(const TensorView& view) { return {view.data, view.dtype, view.shape[0], view.strides[0]}; }

/// Of a tensor with or without the dimension of experts before its own.
std::int64_t expert_stride(const TensorView& view, bool grouped) { return grouped ? view.strides[0] : 0; }

ExpertVectors vectors_of(const TensorView& view, const LinearProblem& p) {
  const std::size_t axis = is_grouped(p) ? 1 : 0;
  return {view.data, view.dtype, p.num_experts, p.n, expert_stride(view, is_grouped(p)), view.strides[axis]};
}

ExpertMatrices matrices_of(const TensorView& view, const LinearProblem& p, bool transposed) {
  const std::size_t axis = is_grouped(p) ? 1 : 0;
  ExpertMatrices w{};
  w.data = view.data;
  w.dtype = view.dtype;
  w.num_experts = p.num_experts;
  w.rows = p.n;
  w.columns = p.k;
  w.expert_stride = expert_stride(view, is_grouped(p));
  // The stride of a dimension of size 1 may be anything, and is the one that makes it contiguous.
  w.row_stride = transposed ? 1 : view.strides[axis];
  w.column_stride = transposed ? view.strides[axis + 1] : 1;
  return w;
}

/// Of a matrix whose dimensions are view's from `axis` on.
BlockScales scales_of(const TensorView& view, const BlockFormat& format, std::size_t axis, std::int64_t rows,
                      std::int64_t columns) {
  const auto block = [](std::int64_t size, std::int64_t all) {
    return size == BlockFormat::kAll ? std::max<std::int64_t>(all, 1) : size;
  };
  return {view.data,
          view.dtype,
          block(format.block_rows, rows),
          block(format.block_columns, columns),
          axis == 0 ? 0 : view.strides[0],
          view.strides[axis],
          view.strides[axis + 1]};
}

}  // namespace

LinearProblem describe(const Call& call) {
  validate_formats(call.stated());
  if (call.one("offsets").defined() && call.one("counts").defined())
    core::invalid_argument("counts: excludes offsets (got both)");
  const DType stated = call.stated().out_dtype, given = call.one("out").dtype;
  if (stated != DType::none && given != DType::none && given != stated)
    core::invalid_type("out: dtype must be out_dtype, ", to_string(stated), " (got ", to_string(given), ")");
  return canonical(schema::Describer(call).describe());
}

LinearParams make_params(const Call& call, const LinearProblem& p) {
  LinearParams params{};
  params.x = matrix_of(call.one("x"));
  params.w = matrices_of(call.one("w"), p, p.w_transposed);
  if (p.x_format.defined()) params.x_scales = scales_of(call.one("x_scale"), p.x_format, 0, p.tokens, p.k);
  if (p.w_format.defined())
    params.w.scales = scales_of(call.one("w_scale"), p.w_format, is_grouped(p) ? 1 : 0, p.n, p.k);
  if (p.w_format.global) {
    const TensorView& global = call.one("w_global_scale");
    params.w.expert_scales = {global.data, global.dtype, p.num_experts, expert_stride(global, is_grouped(p))};
  }
  if (p.bias != LinearBias::none) params.bias = vectors_of(call.one("bias"), p);
  if (is_grouped(p)) params.groups = vector_of(is_counted(p) ? call.one("counts") : call.one("offsets"));
  params.groups_counted = is_counted(p);
  params.activation.kind = kind_of(p.activation);
  params.batch_invariant = p.batch_invariant;
  if (p.pass == LinearPass::linear) {
    params.out = matrix_of(call.one("out"));
    return params;
  }
  params.dout = matrix_of(call.one("dout"));
  if (p.dx) params.dx = matrix_of(call.one("dx"));
  if (p.dw) params.dw = matrices_of(call.one("dw"), p, p.dw_transposed);
  if (p.dbias) params.dbias = vectors_of(call.one("dbias"), p);
  return params;
}

}  // namespace tilewise::operations::linear
