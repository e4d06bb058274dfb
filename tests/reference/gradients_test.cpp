// Every gradient of the reference against finite differences of its own forward pass.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "../support/dense_call.hpp"

namespace tilewise::test {
namespace {

/// The scalar whose gradient the backward pass computes: dout·out + dlse·lse.
double loss(DenseCall& call) {
  call.forward();
  double sum = 0.0;
  for (std::int64_t i = 0; i < call.out.size(); ++i) sum += call.dout.at(i) * call.out.at(i);
  if (call.dlse.view().defined()) {
    for (std::int64_t i = 0; i < call.lse.size(); ++i)
      if (std::isfinite(call.lse.at(i))) sum += call.dlse.at(i) * call.lse.at(i);
  }
  return sum;
}

double central_difference(DenseCall& call, Tensor& input, std::int64_t index, double step) {
  const double kept = input.at(index);
  input.set_at(index, kept + step);
  const double right = input.at(index), high = loss(call);
  input.set_at(index, kept - step);
  const double left = input.at(index), low = loss(call);
  input.set_at(index, kept);
  return (high - low) / (right - left);
}

/// Two step sizes cancel the error's leading term; what is left is about 1e-5.
void expect_gradient(DenseCall& call, Tensor& input, const Tensor& gradient, const std::string& name) {
  for (std::int64_t i = 0; i < input.size(); ++i) {
    if (!std::isfinite(input.at(i))) continue;
    const double wide = central_difference(call, input, i, 0.0625),
                 narrow = central_difference(call, input, i, 0.03125);
    const double expected = (4.0 * narrow - wide) / 3.0;
    EXPECT_NEAR(gradient.at(i), expected, 2e-4 * (1.0 + std::abs(expected))) << name << ", element " << i;
  }
}

void expect_all_gradients(DenseCall call, bool with_dlse = false) {
  call.prepare_backward(with_dlse);
  call.forward();
  call.backward();
  expect_gradient(call, call.q, call.dq, "dq");
  expect_gradient(call, call.k, call.dk, "dk");
  expect_gradient(call, call.v, call.dv, "dv");
  if (call.dbias.view().defined()) expect_gradient(call, call.bias, call.dbias, "dbias");
  if (call.dsink.view().defined()) expect_gradient(call, call.sink, call.dsink, "dsink");
}

constexpr Sizes kSmall{.batch = 2, .seqlen_q = 3, .seqlen_k = 5, .heads_q = 2, .heads_k = 1, .dim = 4, .dim_v = 3};

TEST(Gradients, Plain) { expect_all_gradients(DenseCall(kSmall)); }

TEST(Gradients, OfTheLogSumExp) { expect_all_gradients(DenseCall(kSmall), true); }

TEST(Gradients, CausalWithRowsThatSeeNothing) {
  DenseCall call({.seqlen_q = 5, .seqlen_k = 3, .heads_q = 2, .heads_k = 2});
  call.options.mask = Mask::causal;
  expect_all_gradients(call, true);
}

TEST(Gradients, WindowsInBothAlignments) {
  for (const Alignment alignment : {Alignment::bottom_right, Alignment::top_left}) {
    DenseCall call(kSmall);
    call.options.window_left = 1;
    call.options.window_right = 1;
    call.options.alignment = alignment;
    expect_all_gradients(call);
  }
}

TEST(Gradients, SoftcapWithBiasBehindIt) {
  DenseCall call(kSmall);
  call.options.softcap = 0.8;
  call.bias = call.normal(DType::f32, {2, 2, 3, 5});
  expect_all_gradients(call, true);
}

TEST(Gradients, EveryBroadcastOfBias) {
  for (int dims = 0; dims < 16; ++dims) {
    DenseCall call(kSmall);
    call.bias = call.normal(DType::f32, {dims & 1 ? 2 : 1, dims & 2 ? 2 : 1, dims & 4 ? 3 : 1, dims & 8 ? 5 : 1});
    if (dims == 15) call.bias.set({1, 0, 2, 3}, -HUGE_VAL);  // hidden: its gradient is zero
    call.prepare_backward();
    call.forward();
    call.backward();
    expect_gradient(call, call.bias, call.dbias, "dbias " + std::to_string(dims));
    if (dims == 15) {
      EXPECT_EQ(call.dbias.get({1, 0, 2, 3}), 0.0);
    }
  }
}

TEST(Gradients, SinkAndAlibi) {
  DenseCall call(kSmall);
  call.sink = call.normal(DType::f32, {2});
  call.alibi_slopes = call.normal(DType::f32, {2, 2});
  expect_all_gradients(call, true);
}

TEST(Gradients, SinkOfRowsThatSeeNothing) {
  DenseCall call({.seqlen_q = 3, .seqlen_k = 2});
  call.options.mask = Mask::causal;
  call.sink = call.normal(DType::f32, {1});
  expect_all_gradients(call, true);
}

TEST(Gradients, Dropout) {
  DenseCall call(kSmall);
  call.options.dropout_p = 0.4;
  call.options.seed = 77;
  call.sink = call.normal(DType::f32, {2});
  expect_all_gradients(call, true);
}

TEST(Gradients, NegativeAndZeroScale) {
  for (const double scale : {-0.7, 0.0}) {
    DenseCall call(kSmall);
    call.options.softmax_scale = scale;
    expect_all_gradients(call);
  }
}

TEST(Gradients, UsedPartsOfSequences) {
  DenseCall call({.batch = 2, .seqlen_q = 4, .seqlen_k = 6, .heads_q = 2, .heads_k = 1});
  call.seqused_q = DenseCall::lengths({3, 4});
  call.seqused_k = DenseCall::lengths({4, 0});
  call.leftpad_k = DenseCall::lengths({1, 2});
  call.bias = call.normal(DType::f32, {1, 1, 4, 6});
  call.options.mask = Mask::causal;
  expect_all_gradients(call, true);
}

TEST(Gradients, OnlyThoseAskedFor) {
  DenseCall all(kSmall), one(kSmall);
  all.prepare_backward();
  all.forward();
  all.backward();
  one.prepare_backward();
  one.forward();
  one.dq = one.dv = Tensor();
  one.backward();
  EXPECT_EQ(one.dk.values(), all.dk.values());
}

}  // namespace
}  // namespace tilewise::test
