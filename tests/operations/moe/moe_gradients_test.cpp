// Gradients of experts against differences of the forward pass in f64, with every activation and layout.
#include <cmath>
#include <string>

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
