// q, k and v in fp8 e4m3: who claims it, that scales of every kind stand where the definition has them, and what has no
// fp8.
#include <cmath>
#include <string>
#include <vector>

#include "../support/dense_call.hpp"
#include "implementation_test.hpp"

namespace tilewise::test {
namespace {

using operations::attention::Feature;

constexpr std::int64_t kBatch = 2, kQueries = 5, kKeys = 9, kHeadsQ = 4, kHeadsK = 2, kDim = 16;

/// A call in fp8 with scales of powers of 2, which a call without scales can have in its numbers instead.
struct Fp8Call {
  Tensor q{DType::fp8_e4m3, {kBatch, kQueries, kHeadsQ, kDim}}, k{DType::fp8_e4m3, {kBatch, kKeys, kHeadsK, kDim}},
      v{DType::fp8_e4m3, {kBatch, kKeys, kHeadsK, kDim}}, out, lse{DType::f32, {kBatch, kHeadsQ, kQueries}};
  std::vector<Tensor> scales;  ///< that options point to
  AttentionOptions options;

  explicit Fp8Call(DType out_dtype = DType::bf16) : out(out_dtype, {kBatch, kQueries, kHeadsQ, kDim}) {
    verify::Random random(3);
    for (Tensor* t : {&q, &k, &v}) t->fill_with([&](auto) { return random.normal(); });
  }

  [[nodiscard]] ForwardArguments arguments() const {
    return {q.view(), k.view(), v.view(), out.view(), lse.view(), options};
  }
  void run(const std::string& implementation) const { attention_forward(arguments(), {implementation}); }

  TensorView scale(const std::vector<std::int64_t>& shape, const std::vector<double>& values) {
    Tensor& tensor = scales.emplace_back(DType::f32, shape);
    for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.set_at(i, values[static_cast<std::size_t>(i)]);
    return tensor.view();
  }

  /// Multiplies [batch, row, head, :] by factor(batch, head), which is exact for powers of 2 here.
  template <typename Factor>
  static void multiply(Tensor& tensor, const Factor& factor) {
    Tensor own = tensor;
    tensor.fill_with(
        [&](std::span<const std::int64_t> p) { return own.get({p[0], p[1], p[2], p[3]}) * factor(p[0], p[2]); });
  }
};

class Fp8 : public ImplementationTest {
 protected:
  void SetUp() override {
    ImplementationTest::SetUp();
    if (!IsSkipped() && !supported_features().contains(Feature::fp8_e4m3)) GTEST_SKIP() << "no fp8";
  }
};

/// Wider than what a rounding of weights to bf16 leaves in a mean of five numbers.
constexpr double kClose = 0.03;

void expect_close(const Tensor& own, const Tensor& expected, const std::string& what) {
  for (std::int64_t i = 0; i < own.size(); ++i) {
    ASSERT_NEAR(own.at(i), expected.at(i), kClose * std::max(1.0, std::abs(expected.at(i)))) << what << " at " << i;
  }
}

TEST_P(Fp8, ScalesAreFactorsOfWhatIsStored) {
  constexpr double kFactors[] = {0.5, 2.0, 0.25, 1.0};
  for (const DType out : {DType::bf16, DType::f16}) {
    if (out == DType::f16 && !supported_features().contains(Feature::f16_out)) continue;
    Fp8Call by_number(out), by_head(out), by_batch(out);
    by_number.options.q_scale_value = 0.5;
    by_number.options.k_scale = by_number.scale({1}, {2.0});
    by_number.options.v_scale = by_number.scale({1}, {0.25});
    by_number.options.v_scale.rank = 0;
    by_head.options.q_scale = by_head.scale({kHeadsQ}, {0.5, 2.0, 0.25, 1.0});
    by_head.options.k_scale = by_head.scale({kHeadsK}, {0.5, 2.0});
    by_head.options.v_scale = by_head.scale({kHeadsK}, {2.0, 0.5});
    by_batch.options.q_scale = by_batch.scale({kBatch, kHeadsK}, {0.5, 2.0, 0.25, 1.0});
    by_batch.options.v_scale = by_batch.scale({kBatch, kHeadsK}, {1.0, 0.25, 2.0, 0.5});

    Fp8Call plain(out);
    Fp8Call::multiply(plain.v, [](auto, auto) { return 0.25; });  // 0.5 times 2 of the scores cancel
    by_number.run(GetParam()), plain.run("reference");
    expect_close(by_number.out, plain.out, "a number");
    plain = Fp8Call(out);
    Fp8Call::multiply(plain.q, [&](auto, std::int64_t h) { return kFactors[h]; });
    Fp8Call::multiply(plain.k, [&](auto, std::int64_t h) { return h == 0 ? 0.5 : 2.0; });
    Fp8Call::multiply(plain.v, [&](auto, std::int64_t h) { return h == 0 ? 2.0 : 0.5; });
    by_head.run(GetParam()), plain.run("reference");
    expect_close(by_head.out, plain.out, "heads");
    plain = Fp8Call(out);
    Fp8Call::multiply(plain.q, [&](std::int64_t b, std::int64_t h) { return kFactors[2 * b + h / 2]; });
    Fp8Call::multiply(
        plain.v, [&](std::int64_t b, std::int64_t h) { return b == 0 ? (h == 0 ? 1.0 : 0.25) : (h == 0 ? 2.0 : 0.5); });
    by_batch.run(GetParam()), plain.run("reference");
    expect_close(by_batch.out, plain.out, "batch and head");
    expect_close(by_batch.lse, plain.lse, "the log-sum-exp of batch and head");
  }
}

TEST_P(Fp8, EqualKeysGiveTheMeanOfValues) {
  Fp8Call call;
  call.k.fill(1.0);
  call.v.fill_with([](std::span<const std::int64_t> p) { return static_cast<double>(p[1] % 3) * 16.0; });
  call.options.v_scale_value = 0.125;
  call.run(GetParam());
  for (std::int64_t i = 0; i < call.out.size(); ++i) ASSERT_NEAR(call.out.at(i), 2.0, 0.02) << i;
}

TILEWISE_FOR_EVERY_IMPLEMENTATION(Fp8);

TEST(Fp8Claims, OthersRefuseByName) {
  for (const std::string device : {"cpu", "cuda", "hip"}) {
    const Problem problem =
        parse_problem("attention_forward device=" + device + " dtype=fp8_e4m3 seqlen_q=8 head_dim=16");
    for (const ExplainRow& row : explain(problem).rows) {
      const core::Implementation& implementation = implementation_named(row.implementation);
      if (implementation.device() != problem.device) continue;
      const bool claims = operations::attention::features_of(implementation).contains(Feature::fp8_e4m3);
      EXPECT_EQ(row.reason == "does not support fp8_e4m3", !claims) << row.implementation << ": " << row.reason;
    }
  }
}

}  // namespace
}  // namespace tilewise::test
