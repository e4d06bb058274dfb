// Gradients of experts against differences of the forward pass in f64, with every activation and layout.
#include <cmath>
#include <string>
#include <vector>

#include "moe_support.hpp"

namespace tilewise {
namespace {

using test::element, test::SmallMoe;

struct Form {
  MoeGate gate;
  Activation activation;
  MoeClamp clamp;
  bool weight_on_input;
};

class MoeGradients : public testing::TestWithParam<Form> {
 protected:
  MoeGradients() {
    call_.forward.activation = call_.backward.activation = GetParam().activation;
    call_.forward.clamp = call_.backward.clamp = GetParam().clamp;
    call_.forward.limit = call_.backward.limit = GetParam().clamp == MoeClamp::none ? 0.0 : 0.7;
    call_.forward.weight_on_input = call_.backward.weight_on_input = GetParam().weight_on_input;
    call_.set_id(4, -1);  // and one that is somebody else's
  }

  /// Sum of out * dout, whose gradients the backward pass gives.
  double loss() {
    moe(call_.forward, {"reference"});
    double sum = 0.0;
    for (std::int64_t i = 0; i < call_.forward.out.numel(); ++i)
      sum += element(call_.forward.out, i) * element(call_.backward.dout, i);
    return sum;
  }

  void expect_differences(const TensorView& input, const TensorView& gradient, const std::string& name) {
    constexpr double kStep = 1e-6;
    for (std::int64_t i = 0; i < input.numel(); ++i) {
      const double before = element(input, i);
      test::set_element(input, i, before + kStep);
      const double above = loss();
      test::set_element(input, i, before - kStep);
      const double below = loss();
      test::set_element(input, i, before);
      EXPECT_NEAR(element(gradient, i), (above - below) / (2.0 * kStep), 1e-7) << name << "[" << i << "]";
    }
  }

  SmallMoe call_{DType::f64, GetParam().gate};
};

TEST_P(MoeGradients, AreTheDifferences) {
  const MoeBackwardArguments& b = call_.backward;
  for (const std::string& row : test::rows_for(describe(b))) {
    moe_backward(b, {row});
    expect_differences(b.x, b.dx, row + ": dx");
    expect_differences(b.topk_weights, b.dtopk_weights, row + ": dtopk_weights");
    expect_differences(b.gate_up, b.dgate_up, row + ": dgate_up");
    expect_differences(b.down, b.ddown, row + ": ddown");
    expect_differences(b.gate_up_bias, b.dgate_up_bias, row + ": dgate_up_bias");
    expect_differences(b.down_bias, b.ddown_bias, row + ": ddown_bias");
  }
}

/// They stand by expert, gates first, and 0 behind the last expert's.
TEST_P(MoeGradients, AreThoseOfSavedSums) {
  const MoeBackwardArguments& b = call_.backward;
  moe_backward(b, {"reference"});
  std::vector<double> expected;
  const auto for_each_gradient = [&](const auto& visit) {
    for (const TensorView& gradient : {b.dx, b.dtopk_weights, b.dgate_up, b.ddown, b.dgate_up_bias, b.ddown_bias})
      for (std::int64_t i = 0; i < gradient.numel(); ++i) visit(gradient, i);
  };
  for_each_gradient([&](const TensorView& gradient, std::int64_t i) { expected.push_back(element(gradient, i)); });
  call_.save_gate_up();
  for (const std::string& forward : test::rows_for(describe(call_.forward))) {
    for (std::int64_t i = 0; i < call_.gate_up_out.numel(); ++i) test::set_element(call_.gate_up_out, i, 7.0);
    moe(call_.forward, {forward});
    const std::int64_t columns = call_.gate_up_out.shape[1], last = SmallMoe::kTokens * SmallMoe::kTopK - 1;
    for (std::int64_t i = 0; i < columns; ++i) EXPECT_EQ(element(call_.gate_up_out, last * columns + i), 0.0);
    for (const std::string& row : test::rows_for(describe(b))) {
      for_each_gradient([](const TensorView& gradient, std::int64_t i) { test::set_element(gradient, i, 7.0); });
      moe_backward(b, {row});
      std::size_t next = 0;
      for_each_gradient([&](const TensorView& gradient, std::int64_t i) {
        EXPECT_NEAR(element(gradient, i), expected[next++], 1e-9) << forward << ", " << row;
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, MoeGradients,
                         testing::Values(Form{MoeGate::concatenated, Activation::silu, MoeClamp::none, false},
                                         Form{MoeGate::interleaved, Activation::swiglu_oai, MoeClamp::before, false},
                                         Form{MoeGate::concatenated, Activation::gelu_tanh, MoeClamp::after, true},
                                         Form{MoeGate::none, Activation::relu_squared, MoeClamp::none, true},
                                         Form{MoeGate::none, Activation::gelu, MoeClamp::before, false},
                                         Form{MoeGate::interleaved, Activation::identity, MoeClamp::none, false},
                                         Form{MoeGate::concatenated, Activation::relu, MoeClamp::none, false}));

}  // namespace
}  // namespace tilewise
