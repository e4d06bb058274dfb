// The reference's gradients against differences of its results, all in f64.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "backends/reference/linear/reference_linear.hpp"
#include "backends/reference/moe/reference_moe.hpp"
#include "backends/reference/route/reference_route.hpp"
#include "support.hpp"

namespace tilewise {
namespace {

using device::ActivationClamp, device::ActivationKind, device::GateLayout;
using experts_test::at, experts_test::ExpertVectors, experts_test::Matrix, experts_test::matrix_of, experts_test::set;
using experts_test::Tensors;

/// sum of dout * out.
double inner(const Matrix& dout, const Matrix& out) {
  double sum = 0;
  for (std::int64_t i = 0; i < out.rows * out.columns; ++i)
    sum += at(dout, i / out.columns, i % out.columns) * at(out, i / out.columns, i % out.columns);
  return sum;
}

Matrix rows_of(const ExpertVectors& v) { return {v.data, v.dtype, v.num_experts, v.size, v.expert_stride, v.stride}; }

/// Compares every element of `gradient` with the difference quotient of loss() by `input`.
void expect_gradient(const std::string& name, const Matrix& input, const Matrix& gradient, double step,
                     const std::function<double()>& loss) {
  for (std::int64_t i = 0; i < input.rows * input.columns; ++i) {
    const std::int64_t row = i / input.columns, column = i % input.columns;
    const double value = at(input, row, column);
    set(input, row, column, value + step);
    const double above = loss();
    set(input, row, column, value - step);
    const double below = loss();
    set(input, row, column, value);
    const double expected = (above - below) / (2 * step);
    EXPECT_NEAR(at(gradient, row, column), expected, 1e-5 * (1 + std::abs(expected))) << name << row << "," << column;
  }
}

TEST(ReferenceGradients, GroupedLinear) {
  constexpr double kStep = 1e-5;
  Tensors tensors(11);
  operations::linear::LinearParams p{};
  p.x = tensors.matrix(DType::f64, 6, 3);
  p.dx = tensors.matrix(DType::f64, 6, 3, {.by_columns = true});
  p.out = tensors.matrix(DType::f64, 6, 4);
  p.dout = tensors.matrix(DType::f64, 6, 4);
  p.w = tensors.weights(DType::f64, 3, 4, 3, {.by_columns = true});
  p.dw = tensors.weights(DType::f64, 3, 4, 3);
  p.bias = tensors.vectors(DType::f64, 3, 4);
  p.dbias = tensors.vectors(DType::f64, 3, 4);
  p.groups = tensors.integers(DType::i64, {1, 3, 3, 5});  // the second expert has no rows
  for (const ActivationKind kind : {ActivationKind::identity, ActivationKind::silu, ActivationKind::gelu}) {
    p.activation.kind = kind;
    backends::reference::linear_backward(p);
    const auto loss = [&] { return backends::reference::linear_forward(p), inner(p.dout, p.out); };
    expect_gradient("x ", p.x, p.dx, kStep, loss);
    for (std::int64_t e = 0; e < 3; ++e) expect_gradient("w ", matrix_of(p.w, e), matrix_of(p.dw, e), kStep, loss);
    expect_gradient("bias ", rows_of(p.bias), rows_of(p.dbias), kStep, loss);
    for (std::int64_t i = 0; i < 12; ++i) EXPECT_EQ(at(matrix_of(p.dw, 1), i / 3, i % 3), 0);
  }
}

void check_experts(GateLayout layout, device::Activation activation, bool weight_on_input) {
  constexpr double kStep = 1e-5;
  constexpr std::int64_t kTokens = 4, kHidden = 3, kIntermediate = 2, kExperts = 3;
  Tensors tensors(12);
  operations::moe::MoeParams p{};
  const std::int64_t rows = (layout == GateLayout::none ? 1 : 2) * kIntermediate;
  p.x = tensors.matrix(DType::f64, kTokens, kHidden);
  p.dx = tensors.matrix(DType::f64, kTokens, kHidden);
  p.out = tensors.matrix(DType::f64, kTokens, kHidden);
  p.dout = tensors.matrix(DType::f64, kTokens, kHidden);
  p.topk_ids = tensors.ids(DType::i32, kTokens, 2, [&] { return tensors.random.integer(0, kExperts); });
  p.topk_weights = tensors.matrix(DType::f64, kTokens, 2);
  p.dtopk_weights = tensors.matrix(DType::f64, kTokens, 2);
  p.gate_up = tensors.weights(DType::f64, kExperts, rows, kHidden);
  p.dgate_up = tensors.weights(DType::f64, kExperts, rows, kHidden);
  p.down = tensors.weights(DType::f64, kExperts, kHidden, kIntermediate, {.by_columns = true});
  p.ddown = tensors.weights(DType::f64, kExperts, kHidden, kIntermediate);
  p.gate_up_bias = tensors.vectors(DType::f64, kExperts, rows);
  p.dgate_up_bias = tensors.vectors(DType::f64, kExperts, rows);
  p.down_bias = tensors.vectors(DType::f64, kExperts, kHidden);
  p.ddown_bias = tensors.vectors(DType::f64, kExperts, kHidden);
  p.gate_layout = layout;
  p.activation = activation;
  p.weight_on_input = weight_on_input;
  backends::reference::moe_backward(p);
  const auto loss = [&] { return backends::reference::moe_forward(p), inner(p.dout, p.out); };
  expect_gradient("x ", p.x, p.dx, kStep, loss);
  expect_gradient("topk_weights ", p.topk_weights, p.dtopk_weights, kStep, loss);
  for (std::int64_t e = 0; e < kExperts; ++e) {
    expect_gradient("gate_up ", matrix_of(p.gate_up, e), matrix_of(p.dgate_up, e), kStep, loss);
    expect_gradient("down ", matrix_of(p.down, e), matrix_of(p.ddown, e), kStep, loss);
  }
  expect_gradient("gate_up_bias ", rows_of(p.gate_up_bias), rows_of(p.dgate_up_bias), kStep, loss);
  expect_gradient("down_bias ", rows_of(p.down_bias), rows_of(p.ddown_bias), kStep, loss);
}

TEST(ReferenceGradients, Experts) {
  check_experts(GateLayout::concatenated, {ActivationKind::silu, ActivationClamp::none, 0, 0}, false);
  check_experts(GateLayout::interleaved, {ActivationKind::swiglu_oai, ActivationClamp::before, 1.702, 0.5}, false);
  check_experts(GateLayout::none, {ActivationKind::relu_squared, ActivationClamp::none, 0, 0}, false);
  check_experts(GateLayout::concatenated, {ActivationKind::gelu_tanh, ActivationClamp::after, 0, 0.4}, true);
}

TEST(ReferenceGradients, Route) {
  using enum RouteScore;
  Tensors tensors(13);
  operations::route::RouteParams p{};
  p.logits = tensors.matrix(DType::f32, 3, 6);
  for (std::int64_t i = 0; i < 18; ++i)  // to which a step adds without rounding
    set(p.logits, i / 6, i % 6, std::round(64 * at(p.logits, i / 6, i % 6)) / 64);
  p.dlogits = tensors.matrix(DType::f64, 3, 6);
  p.topk_ids = tensors.ids(DType::i32, 3, 3, [] { return 0; });
  p.topk_weights = tensors.matrix(DType::f64, 3, 3);
  p.dtopk_weights = tensors.matrix(DType::f64, 3, 3);
  p.scale_of_expert = tensors.vector(DType::f32, 6);
  p.bias = tensors.vector(DType::f32, 6);
  p.n_group = p.topk_group = 1;
  p.routed_scaling_factor = 2.5;
  p.epsilon = 0.125;
  constexpr double kStep = 0x1p-12;  // logits are rounded to fp32
  for (const auto score : {softmax, sigmoid, sqrt_softplus, identity}) {
    for (const auto weigh : {RouteWeigh::score, RouteWeigh::softmax_of_chosen, RouteWeigh::sigmoid_of_chosen}) {
      for (const auto normalise :
           {RouteNormalise::no, RouteNormalise::sum_plus_epsilon, RouteNormalise::at_least_epsilon}) {
        if (score == identity && weigh == RouteWeigh::score && normalise != RouteNormalise::no)
          continue;  // sums near 0
        p.score = score, p.weigh = weigh, p.normalise = normalise;
        backends::reference::route_forward(p);
        backends::reference::route_backward(p);
        expect_gradient("logits ", p.logits, p.dlogits, kStep,
                        [&] { return backends::reference::route_forward(p), inner(p.dtopk_weights, p.topk_weights); });
      }
    }
  }
}

}  // namespace
}  // namespace tilewise
