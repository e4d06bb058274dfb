// Gradients of merge against differences of the forward pass in f64, and what parts that saw nothing and values that
// are no numbers leave in them.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "merge_support.hpp"

namespace tilewise {
namespace {

using test::SmallMerge;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::span<double> values_of(const TensorView& view) {
  return {static_cast<double*>(view.data), static_cast<std::size_t>(view.numel())};
}
std::span<float> floats_of(const TensorView& view) {
  return {static_cast<float*>(view.data), static_cast<std::size_t>(view.numel())};
}

class MergeGradients : public testing::TestWithParam<std::string> {
 protected:
  MergeGradients() {
    call_.forward.sink = call_.backward.sink = call_.tensor({4}, DType::f64);
    call_.backward.dsink = call_.tensor({4}, DType::f64);
    for (std::vector<TensorView>* list : {&call_.forward.outs, &call_.forward.lses})
      for (const TensorView& view : *list) fill(view);
    for (const TensorView& view : {call_.forward.sink, call_.backward.dout, call_.backward.dlse}) fill(view);
  }

  void fill(const TensorView& view) {
    for (double& value : values_of(view)) value = normal_(engine_);
  }

  /// Sum of out * dout and softmax_lse * dlse, whose gradients the backward pass gives.
  double loss() {
    merge(call_.forward, {"reference"});
    double sum = 0.0;
    for (const auto& [result, gradient] : {std::pair{call_.forward.out, call_.backward.dout},
                                           std::pair{call_.forward.softmax_lse, call_.backward.dlse}}) {
      for (std::size_t i = 0; i < values_of(result).size(); ++i) {
        if (std::isfinite(values_of(result)[i])) sum += values_of(result)[i] * values_of(gradient)[i];
      }
    }
    return sum;
  }

  void expect_differences(const TensorView& input, const TensorView& gradient, const std::string& name) {
    constexpr double kStep = 1e-5;
    for (std::size_t i = 0; i < values_of(input).size(); ++i) {
      double& value = values_of(input)[i];
      if (!std::isfinite(value)) continue;
      const double before = value;
      value = before + kStep;
      const double above = loss();
      value = before - kStep;
      const double below = loss();
      value = before;
      EXPECT_NEAR(values_of(gradient)[i], (above - below) / (2.0 * kStep), 1e-8) << name << "[" << i << "]";
    }
  }

  void expect_all_differences() {
    merge_backward(call_.backward, {GetParam()});
    for (std::size_t n = 0; n < call_.forward.outs.size(); ++n) {
      expect_differences(call_.forward.outs[n], call_.backward.douts[n], "douts");
      expect_differences(call_.forward.lses[n], call_.backward.dlses[n], "dlses");
    }
    expect_differences(call_.forward.sink, call_.backward.dsink, "dsink");
  }

  SmallMerge call_{3, DType::f64};
  std::mt19937 engine_{7};
  std::normal_distribution<double> normal_;
};

TEST_P(MergeGradients, AreTheDifferences) { expect_all_differences(); }

TEST_P(MergeGradients, OfRowsThatSomePartsDidNotSee) {
  for (std::size_t i = 0; i < 24; ++i) {
    if (i % 3 == 0) values_of(call_.forward.lses[0])[i] = -kInfinity;
    if (i % 4 == 0) values_of(call_.forward.lses[1])[i] = -kInfinity;
    if (i % 6 == 0) values_of(call_.forward.lses[2])[i] = -kInfinity;  // with all of the others at 12
  }
  expect_all_differences();
}

/// lse of a part that saw nothing: gradients 0 whatever its out holds; of a row that nobody saw, the sink alone has
/// one.
TEST_P(MergeGradients, AreZeroWhereAPartSawNothing) {
  for (double& value : values_of(call_.forward.lses[1])) value = -kInfinity;
  for (double& value : values_of(call_.forward.outs[1])) value = kNan;
  merge_backward(call_.backward, {GetParam()});
  for (const double gradient : values_of(call_.backward.douts[1])) EXPECT_EQ(gradient, 0.0);
  for (const double gradient : values_of(call_.backward.dlses[1])) EXPECT_EQ(gradient, 0.0);
  for (const double gradient : values_of(call_.backward.dsink)) EXPECT_TRUE(std::isfinite(gradient));
  for (const TensorView& lse : call_.forward.lses)
    for (double& value : values_of(lse)) value = -kInfinity;
  merge_backward(call_.backward, {GetParam()});
  for (const double gradient : values_of(call_.backward.douts[0])) EXPECT_EQ(gradient, 0.0);
  for (std::size_t h = 0; h < 4; ++h) {
    double sum = 0.0;  // softmax_lse is the sink there
    for (std::size_t b = 0; b < 2; ++b)
      for (std::size_t s = 0; s < 3; ++s) sum += values_of(call_.backward.dlse)[(b * 4 + h) * 3 + s];
    EXPECT_NEAR(values_of(call_.backward.dsink)[h], sum, 1e-12);
  }
  for (double& value : values_of(call_.forward.sink)) value = -kInfinity;
  merge_backward(call_.backward, {GetParam()});
  for (const double gradient : values_of(call_.backward.dsink)) EXPECT_EQ(gradient, 0.0);
}

TEST_P(MergeGradients, ANaNStaysInItsRow) {
  values_of(call_.forward.lses[2])[0] = kNan;  // batch 0, head 0, query 0
  merge_backward(call_.backward, {GetParam()});
  for (std::size_t i = 0; i < 24; ++i) {
    EXPECT_EQ(std::isnan(values_of(call_.backward.dlses[0])[i]), i == 0) << i;
    EXPECT_EQ(std::isnan(values_of(call_.backward.dlses[2])[i]), i == 0) << i;
  }
  for (std::size_t i = 0; i < 144; ++i) EXPECT_EQ(std::isnan(values_of(call_.backward.douts[1])[i]), i < 6) << i;
  for (std::size_t h = 0; h < 4; ++h) EXPECT_EQ(std::isnan(values_of(call_.backward.dsink)[h]), h == 0) << h;
}

TEST_P(MergeGradients, ThoseNotWantedAreNotNeeded) {
  merge_backward(call_.backward, {GetParam()});
  const auto expect_same = [this](MergeBackwardArguments some) {
    const TensorView dsink = call_.tensor({4}, DType::f64), dlse = call_.tensor({2, 4, 3}, DType::f64);
    if (some.dsink.defined()) some.dsink = dsink;
    if (!some.dlses.empty()) some.dlses[0] = dlse;
    merge_backward(some, {GetParam()});
    if (some.dsink.defined()) {
      EXPECT_EQ(std::memcmp(dsink.data, call_.backward.dsink.data, 4 * sizeof(double)), 0);
    }
    if (!some.dlses.empty()) {
      EXPECT_EQ(std::memcmp(dlse.data, call_.backward.dlses[0].data, 24 * sizeof(double)), 0);
    }
  };
  MergeBackwardArguments some = call_.backward;
  some.douts.clear();
  expect_same(some);
  some.dlses.clear();
  expect_same(some);
  some = call_.backward;
  some.dsink = {};
  expect_same(some);
}

INSTANTIATE_TEST_SUITE_P(Rows, MergeGradients, testing::Values("cpu.generic", "reference"),
                         [](const testing::TestParamInfo<std::string>& info) {
                           return info.param == "reference" ? std::string("reference") : std::string("cpu_generic");
                         });

/// The sums of many rows are the same for any number of threads.
TEST(MergeThreads, DoNotChangeAnyBit) {
  SmallMerge one, two;
  for (SmallMerge* call : {&one, &two}) {
    call->backward.dout = call->tensor({2, 300, 40, 16}, DType::f32);
    call->backward.dlse = call->tensor({2, 40, 300}, DType::f32);
    call->backward.sink = call->tensor({40}, DType::f32);
    call->backward.dsink = call->tensor({40}, DType::f32);
    for (std::size_t n = 0; n < 3; ++n) {
      call->backward.outs[n] = call->tensor({2, 300, 40, 16}, DType::f32);
      call->backward.lses[n] = call->tensor({2, 40, 300}, DType::f32);
      call->backward.douts[n] = call->tensor({2, 300, 40, 16}, DType::f32);
      call->backward.dlses[n] = call->tensor({2, 40, 300}, DType::f32);
    }
    std::mt19937 engine(3);
    std::normal_distribution<float> normal;
    for (const std::vector<TensorView>* list : {&call->backward.outs, &call->backward.lses})
      for (const TensorView& view : *list)
        for (float& value : floats_of(view)) value = normal(engine);
    for (const TensorView& view : {call->backward.dout, call->backward.dlse, call->backward.sink})
      for (float& value : floats_of(view)) value = normal(engine);
  }
  set_num_threads(1);
  merge_backward(one.backward);
  set_num_threads(2);
  merge_backward(two.backward);
  set_num_threads(0);
  EXPECT_EQ(std::memcmp(one.backward.dsink.data, two.backward.dsink.data, 40 * sizeof(float)), 0);
  for (std::size_t n = 0; n < 3; ++n) {
    EXPECT_EQ(std::memcmp(one.backward.douts[n].data, two.backward.douts[n].data, 384000 * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(one.backward.dlses[n].data, two.backward.dlses[n].data, 24000 * sizeof(float)), 0);
  }
}

}  // namespace
}  // namespace tilewise
