// From tensors to a problem and to what kernels take.
#include "operations/linear/call.hpp"

#include "core/message.hpp"
#include "operations/derived/describe.hpp"
#include "operations/linear/rules.hpp"
#include "operations/matrix_views.hpp"

namespace tilewise::operations::linear {

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
  params.x_scales = block_scales_of(call.one("x_scale"), p.x_format, p.tokens, p.k);
  params.w = expert_matrices_of(call.one("w"), p.w_transposed);
  params.w.scales = block_scales_of(call.one("w_scale"), p.w_format, p.n, p.k);
  params.w.expert_scales = vector_of(call.one("w_global_scale"));
  params.bias = expert_vectors_of(call.one("bias"));
  if (is_grouped(p)) params.groups = vector_of(is_counted(p) ? call.one("counts") : call.one("offsets"));
  params.groups_counted = is_counted(p);
  params.activation.kind = kind_of(p.activation);
  params.batch_invariant = p.batch_invariant;
  if (p.pass == LinearPass::linear) {
    params.out = matrix_of(call.one("out"));
    return params;
  }
  params.dout = matrix_of(call.one("dout"));
  params.dx = matrix_of(call.one("dx"));
  params.dw = expert_matrices_of(call.one("dw"), p.dw_transposed);
  params.dbias = expert_vectors_of(call.one("dbias"));
  return params;
}

}  // namespace tilewise::operations::linear
