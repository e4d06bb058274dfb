// float64: who claims it, and that results are the reference's to 1e-12 of the largest.
#include <cmath>

#include "../support/dense_call.hpp"
#include "implementation_test.hpp"

namespace tilewise::test {
namespace {

class Float64 : public ImplementationTest {
 protected:
  void SetUp() override {
    ImplementationTest::SetUp();
    if (!IsSkipped() && !supported_features().contains(operations::attention::Feature::f64)) GTEST_SKIP() << "no f64";
  }

  /// Runs the call and its twin by the reference, forward and backward.
  void compare(const DenseCall& drawn) const {
    DenseCall own = drawn, expected = drawn;
    for (DenseCall* call : {&own, &expected}) {
      call->out = Tensor(DType::f64, shape_of(drawn.out));
      call->lse = Tensor(DType::f64, shape_of(drawn.lse));
    }
    own.forward(GetParam());
    expected.forward("reference");
    expect_close(own.out, expected.out, "out");
    expect_close(own.lse, expected.lse, "softmax_lse");
    expected.prepare_backward(true);
    own = expected;
    for (Tensor DenseCall::* gradient : kGradients) {
      if ((own.*gradient).view().defined()) own.*gradient = Tensor(DType::f64, shape_of(own.*gradient));
    }
    own.backward(GetParam());
    expected.backward("reference");
    for (Tensor DenseCall::* gradient : kGradients) {
      if ((own.*gradient).view().defined()) expect_close(own.*gradient, expected.*gradient, "a gradient");
    }
  }

 private:
  static constexpr Tensor DenseCall::* kGradients[] = {&DenseCall::dq, &DenseCall::dk, &DenseCall::dv,
                                                       &DenseCall::dbias, &DenseCall::dsink};

  static std::vector<std::int64_t> shape_of(const Tensor& tensor) {
    const TensorView view = tensor.view();
    return {view.shape.begin(), view.shape.begin() + view.rank};
  }

  static void expect_close(const Tensor& own, const Tensor& expected, const char* name) {
    double largest = 0.0, error = 0.0;
    for (std::int64_t i = 0; i < own.size(); ++i) {
      if (own.at(i) == expected.at(i)) continue;  // infinities too
      error = std::max(error, std::abs(own.at(i) - expected.at(i)));
      largest = std::max(largest, std::abs(expected.at(i)));
      ASSERT_FALSE(std::isnan(own.at(i))) << name << " at " << i;
    }
    EXPECT_LE(error, 1e-12 * largest) << name;
  }
};

DenseCall every_option(const Sizes& sizes) {
  DenseCall call(sizes, 7);
  call.bias = call.normal(DType::f64, {sizes.heads_q, sizes.seqlen_q, sizes.seqlen_k});
  call.alibi_slopes = call.normal(DType::f64, {sizes.heads_q});
  call.sink = call.normal(DType::f64, {sizes.heads_q});
  call.options.mask = Mask::causal;
  call.options.softcap = 1.5;
  call.options.softmax_scale = 0.3;  // no f32
  call.options.dropout_p = 0.25;
  call.options.seed = 11;
  return call;
}

constexpr Sizes kTiles{.batch = 2,
                       .seqlen_q = 130,
                       .seqlen_k = 300,
                       .heads_q = 4,
                       .heads_k = 2,
                       .dim = 33,
                       .dim_v = 20,
                       .dtype = DType::f64};
constexpr Sizes kDecode{.batch = 1,
                        .seqlen_q = 2,
                        .seqlen_k = 2500,
                        .heads_q = 4,
                        .heads_k = 2,
                        .dim = 40,
                        .dim_v = 24,
                        .dtype = DType::f64};

TEST_P(Float64, Plain) {
  compare(DenseCall(kTiles));
  compare(DenseCall(kDecode));
}

TEST_P(Float64, EveryOption) {
  compare(every_option(kTiles));
  compare(every_option(kDecode));
}

TEST_P(Float64, LargeScores) {
  DenseCall call(kTiles);
  call.options.softmax_scale = 20.0;  // scores of some hundreds: most weights underflow f32
  compare(call);
}

TILEWISE_FOR_EVERY_OTHER_IMPLEMENTATION(Float64);

TEST(Float64Claims, AreTheReferencesAndTheCpus) {
  for (const core::Implementation* row : core::implementation_table()) {
    constexpr const Problem* kTag = nullptr;
    if (&row->operation() != &operation_of(kTag)) continue;
    const std::string name(row->name());
    const bool claims = name == "reference" || name == "cpu.generic" || name == "cpu.avx2" || name == "cpu.avx512";
    EXPECT_EQ(operations::attention::features_of(*row).contains(operations::attention::Feature::f64), claims) << name;
  }
}

TEST(Float64Claims, GpusRefuseByName) {
  for (const std::string device : {"cuda", "hip"}) {
    const Problem problem = parse_problem("attention_forward device=" + device + " dtype=f64 seqlen_q=8 head_dim=16");
    for (const ExplainRow& row : explain(problem).rows) {
      EXPECT_FALSE(row.accepted) << row.implementation;
      if (implementation_named(row.implementation).device() != problem.device) continue;
      EXPECT_EQ(row.reason, "does not support f64") << row.implementation;
    }
  }
}

}  // namespace
}  // namespace tilewise::test
