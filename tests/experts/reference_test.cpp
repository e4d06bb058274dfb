// The reference's linear and expert layers against closed forms.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "backends/reference/linear/reference_linear.hpp"
#include "backends/reference/moe/reference_moe.hpp"
#include "support.hpp"

namespace tilewise {
namespace {

using device::ActivationClamp, device::ActivationKind, device::GateLayout;
using experts_test::at, experts_test::matrix_of, experts_test::set, experts_test::sigmoid, experts_test::Tensors;
using operations::linear::LinearParams;
using operations::moe::MoeParams;

/// Two experts' identities times 1 and 10.
LinearParams scaled_rows(Tensors& tensors, std::int64_t rows, const std::vector<std::int64_t>& groups, bool counted) {
  LinearParams p{};
  p.x = tensors.matrix(DType::f32, rows, 2);
  p.out = tensors.matrix(DType::f32, rows, 2);
  p.w = tensors.weights(DType::f32, 2, 2, 2);
  p.groups = tensors.integers(DType::i32, groups);
  p.groups_counted = counted;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t c = 0; c < 2; ++c) set(p.x, row, c, static_cast<double>(row + 1));
  }
  for (std::int64_t e = 0; e < 2; ++e) {
    for (std::int64_t i = 0; i < 4; ++i)
      set(matrix_of(p.w, e), i / 2, i % 2, i / 2 == i % 2 ? (e == 0 ? 1.0 : 10.0) : 0.0);
  }
  return p;
}

std::vector<double> first_column(const LinearParams& p) {
  backends::reference::linear_forward(p);
  std::vector<double> column;
  for (std::int64_t row = 0; row < p.out.rows; ++row) column.push_back(at(p.out, row, 0));
  return column;
}

TEST(ReferenceLinear, RowsOfGroups) {
  Tensors tensors(1);
  EXPECT_EQ(first_column(scaled_rows(tensors, 5, {1, 2, 4}, false)), (std::vector<double>{0, 2, 30, 40, 0}));
  EXPECT_EQ(first_column(scaled_rows(tensors, 4, {2, 1}, true)), (std::vector<double>{1, 2, 30, 0}));
}

TEST(ReferenceLinear, OffsetsAndCountsThatAddUpToNothing) {
  Tensors tensors(1);
  EXPECT_EQ(first_column(scaled_rows(tensors, 3, {-4, 2, 99}, false)), (std::vector<double>{1, 2, 30}));
  EXPECT_EQ(first_column(scaled_rows(tensors, 3, {2, 1, 3}, false)), (std::vector<double>{0, 0, 30}));
  EXPECT_EQ(first_column(scaled_rows(tensors, 3, {-1, 2}, true)), (std::vector<double>{10, 20, 0}));
  EXPECT_EQ(first_column(scaled_rows(tensors, 3, {2147483647, 2147483647}, true)), (std::vector<double>{1, 2, 3}));
}

TEST(ReferenceLinear, NothingToSumUpGivesTheBias) {
  Tensors tensors(2);
  LinearParams p{};
  p.x = tensors.matrix(DType::bf16, 2, 0);
  p.out = tensors.matrix(DType::f32, 2, 3);
  p.w = tensors.weights(DType::bf16, 1, 3, 0);
  p.bias = tensors.vectors(DType::f32, 1, 3);
  p.activation.kind = ActivationKind::relu_squared;
  backends::reference::linear_forward(p);
  for (std::int64_t n = 0; n < 3; ++n) {
    const double bias = std::max(operations::load_element(DType::f32, p.bias.data, n), 0.0);
    EXPECT_FLOAT_EQ(static_cast<float>(at(p.out, 1, n)), static_cast<float>(bias * bias));
  }
}

/// One expert of one intermediate column, which gives what the activation does with gate and up.
double activated(const device::Activation& activation, GateLayout layout, double gate, double up) {
  Tensors tensors(1);
  MoeParams p{};
  const std::int64_t rows = layout == GateLayout::none ? 1 : 2;
  p.x = tensors.matrix(DType::f64, 1, 1);
  p.out = tensors.matrix(DType::f64, 1, 1);
  p.topk_ids = tensors.ids(DType::i64, 1, 1, [] { return 0; });
  p.topk_weights = tensors.matrix(DType::f64, 1, 1);
  p.gate_up = tensors.weights(DType::f64, 1, rows, 1);
  p.down = tensors.weights(DType::f64, 1, 1, 1);
  p.gate_layout = layout;
  p.activation = activation;
  for (const auto& one : {p.x, p.topk_weights, matrix_of(p.down, 0)}) set(one, 0, 0, 1);
  set(matrix_of(p.gate_up, 0), 0, 0, rows == 1 ? up : gate);
  if (rows == 2) set(matrix_of(p.gate_up, 0), 1, 0, up);
  backends::reference::moe_forward(p);
  return at(p.out, 0, 0);
}

TEST(ReferenceExperts, Activations) {
  constexpr double kGate = 1.25, kUp = -0.75;
  const auto gated = [](ActivationKind kind) {
    return activated({kind, ActivationClamp::none, 0, 0}, GateLayout::concatenated, kGate, kUp);
  };
  EXPECT_DOUBLE_EQ(gated(ActivationKind::identity), kGate * kUp);
  EXPECT_DOUBLE_EQ(gated(ActivationKind::silu), kGate * sigmoid(kGate) * kUp);
  EXPECT_DOUBLE_EQ(gated(ActivationKind::gelu), kGate * 0.5 * (1 + std::erf(kGate / std::sqrt(2.0))) * kUp);
  const double u = std::sqrt(2 / std::acos(-1.0)) * (kGate + 0.044715 * kGate * kGate * kGate);
  EXPECT_DOUBLE_EQ(gated(ActivationKind::gelu_tanh), 0.5 * kGate * (1 + std::tanh(u)) * kUp);
  EXPECT_DOUBLE_EQ(gated(ActivationKind::relu), kGate * kUp);
  EXPECT_DOUBLE_EQ(gated(ActivationKind::relu_squared), kGate * kGate * kUp);
  EXPECT_EQ(activated({ActivationKind::relu, ActivationClamp::none, 0, 0}, GateLayout::none, 0, kUp), 0);
  EXPECT_EQ(activated({ActivationKind::identity, ActivationClamp::none, 0, 0}, GateLayout::none, 0, kUp), kUp);
}

TEST(ReferenceExperts, ClampsBeforeAndAfter) {
  const device::Activation oai{ActivationKind::swiglu_oai, ActivationClamp::before, 1.702, 7};
  EXPECT_DOUBLE_EQ(activated(oai, GateLayout::interleaved, 9, -8), 7 * sigmoid(1.702 * 7) * (-7 + 1));
  EXPECT_DOUBLE_EQ(activated(oai, GateLayout::interleaved, -9, 2), -9 * sigmoid(1.702 * -9) * 3);
  const device::Activation before{ActivationKind::silu, ActivationClamp::before, 0, 2};
  const device::Activation after{ActivationKind::silu, ActivationClamp::after, 0, 2};
  EXPECT_DOUBLE_EQ(activated(before, GateLayout::concatenated, 3, 5), 2 * sigmoid(2) * 2);
  EXPECT_DOUBLE_EQ(activated(after, GateLayout::concatenated, 3, -5), 2.0 * -2);
  EXPECT_DOUBLE_EQ(activated(after, GateLayout::concatenated, 2, 1), 2 * sigmoid(2));
  EXPECT_TRUE(std::isnan(activated(before, GateLayout::concatenated, std::nan(""), 1)));
  EXPECT_TRUE(std::isnan(activated(after, GateLayout::concatenated, 1, std::nan(""))));
}

TEST(ReferenceExperts, IdsOfOthersAddNothing) {
  Tensors tensors(3);
  MoeParams p{};
  p.x = tensors.matrix(DType::f32, 3, 2);
  p.out = tensors.matrix(DType::f32, 3, 2);
  const std::vector<std::int64_t> ids = {4, -1, 5, 7, std::numeric_limits<std::int64_t>::min(), 9};
  std::size_t next = 0;
  p.topk_ids = tensors.ids(DType::i64, 3, 2, [&] { return ids[next++]; });
  p.topk_weights = tensors.matrix(DType::f32, 3, 2);
  p.gate_up = tensors.weights(DType::f32, 3, 2, 2);
  p.down = tensors.weights(DType::f32, 3, 2, 2);
  p.first_expert = 4;
  set(p.topk_weights, 0, 1, std::nan(""));
  backends::reference::moe_forward(p);
  for (std::int64_t t = 0; t < 2; ++t) {
    const auto gate_up = matrix_of(p.gate_up, t), down = matrix_of(p.down, t);
    for (std::int64_t n = 0; n < 2; ++n) {
      double sum = 0;
      for (std::int64_t i = 0; i < 2; ++i)
        sum += at(down, n, i) * (at(gate_up, i, 0) * at(p.x, t, 0) + at(gate_up, i, 1) * at(p.x, t, 1));
      EXPECT_NEAR(at(p.out, t, n), at(p.topk_weights, t, 0) * sum, 1e-5) << t;
      EXPECT_EQ(at(p.out, 2, n), 0);
    }
  }
}

}  // namespace
}  // namespace tilewise
