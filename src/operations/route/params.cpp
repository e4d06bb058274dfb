// A call to its problem, and to the parameters of its implementations.
#include "operations/route/params.hpp"

#include "core/tensor_checks.hpp"
#include "operations/derived/describe.hpp"
#include "operations/route/rules.hpp"
#include "operations/route/schema.hpp"

namespace tilewise::operations::route {
namespace {

Matrix matrix(const TensorView& view) {
  if (!view.defined()) return {};
  return {view.data, view.dtype, view.shape[0], view.shape[1], core::stride_at(view, 0), core::stride_at(view, 1)};
}

Vector vector(const TensorView& view) {
  if (!view.defined()) return {};
  return {view.data, view.dtype, view.shape[0], core::stride_at(view, 0)};
}

}  // namespace

RouteProblem describe(const Call& call) {
  const RouteProblem problem = schema::Describer(call).describe();
  route::validate(problem);
  return canonical(problem);
}

RouteParams make_params(const Call& call, const RouteProblem& p) {
  RouteParams params{};
  params.logits = matrix(call.one("logits"));
  params.bias = vector(call.one("bias"));
  params.scale_of_expert = vector(call.one("scale_of_expert"));
  params.topk_ids = matrix(call.one("topk_ids"));
  params.topk_weights = matrix(call.one("topk_weights"));
  params.dtopk_weights = matrix(call.one("dtopk_weights"));
  params.dlogits = matrix(call.one("dlogits"));
  params.score = p.score;
  params.chosen_by = p.chosen_by;
  params.n_group = p.n_group;
  params.topk_group = p.topk_group;
  params.group_value = p.group_value;
  params.outside_groups = p.outside_groups;
  params.weigh = p.weigh;
  params.normalise = p.normalise;
  const auto number = [&p](double x) { return p.dtype == DType::f64 ? x : static_cast<double>(static_cast<float>(x)); };
  params.epsilon = number(p.epsilon);
  params.routed_scaling_factor = number(p.routed_scaling_factor);
  return params;
}

}  // namespace tilewise::operations::route
