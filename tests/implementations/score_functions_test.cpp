// Expressions as kernels evaluate them, against the library's own evaluator: where every query sees one key, its
// log-sum-exp is the score.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "../expression/random_expression.hpp"
#include "../support/dense_call.hpp"
#include "expression/derivative.hpp"
#include "expression/parse.hpp"
#include "implementation_test.hpp"

namespace tilewise::test {
namespace {

using expression::Evaluator;
using expression::Expression;
using expression::Input;
using expression::Type;

constexpr Sizes kSizes{.batch = 2, .seqlen_q = 37, .seqlen_k = 45, .heads_q = 4, .heads_k = 2, .dim = 1, .dim_v = 1};

class EvaluatedScores : public ImplementationTest {
 protected:
  void SetUp() override {
    ImplementationTest::SetUp();
    if (IsSkipped()) return;
    using enum operations::attention::Feature;
    const operations::attention::FeatureSet supported = supported_features();
    if (!supported.contains(score_mod) || !supported.contains(mask_mod)) GTEST_SKIP() << "no functions of scores";
  }

  /// Query i sees key i + 8 alone, and their product is what q holds.
  DenseCall single_keys(DType dtype) const {
    Sizes sizes = kSizes;
    sizes.dtype = dtype;
    DenseCall call(sizes);
    call.options.softmax_scale = 1.0;
    call.options.window_left = call.options.window_right = 0;
    call.k.fill(1.0);
    return call;
  }

  /// Of a function whose kernel gave the log-sum-exps of `call`.
  template <typename Real>
  void expect_scores(const DenseCall& call, const Expression& score_mod, const Expression& mask_mod,
                     std::span<const TensorView> tables) {
    Evaluator<Real> evaluate(score_mod, tables), see(mask_mod, tables);
    const Sizes& s = call.sizes;
    std::int64_t index = 0;
    for (std::int64_t b = 0; b < s.batch; ++b) {
      for (std::int64_t h = 0; h < s.heads_q; ++h) {
        for (std::int64_t i = 0; i < s.seqlen_q; ++i, ++index) {
          const std::int64_t j = i + s.seqlen_k - s.seqlen_q;
          const auto score = static_cast<Real>(call.q.get({b, i, h, 0}));
          const auto integer = [](const std::int64_t& value) { return Input<Real>{.integers = &value}; };
          const std::array inputs{Input<Real>{.reals = &score}, integer(b), integer(h), integer(i), integer(j)};
          Real expected = 0;
          std::uint8_t visible = 0;
          evaluate(inputs, 1, &expected);
          see(inputs, 1, &visible);
          if (visible == 0) expected = -std::numeric_limits<Real>::infinity();
          expect_score(call.lse.at(index), static_cast<double>(expected), sizeof(Real) == sizeof(float));
          if (HasFailure()) {
            FAIL() << to_string(score_mod) << " mask " << to_string(mask_mod) << " at score " << score << " b " << b
                   << " h " << h << " q " << i << " k " << j;
          }
        }
      }
    }
  }

 private:
  static void expect_score(double own, double expected, bool single) {
    if (std::isnan(expected) || expected == kInfinity) {
      EXPECT_TRUE(std::isnan(own)) << own << ", not " << expected;
    } else if (expected == -kInfinity) {
      EXPECT_EQ(own, expected);
    } else {
      EXPECT_NEAR(own, expected, (single ? 2e-6 : 1e-14) * std::max(1.0, std::abs(expected)));
    }
  }
};

/// Rounding decides what // and % of floats give: those are left to verify's bounds.
bool divides_floats(const Expression& function) {
  return std::ranges::any_of(function.nodes(), [](const expression::Node& node) {
    return node.type == Type::real && (node.op == expression::Op::remainder || node.op == expression::Op::floor_divide);
  });
}

/// A signature without a score: masks are drawn with one of theirs.
Expression drawn_mask(expression::RandomExpression& random, int size) {
  while (true) {
    const Expression drawn = random.draw(Type::boolean, size);
    if (!drawn.speaks_of("score")) return drawn;
  }
}

TEST_P(EvaluatedScores, OfRandomExpressionsAreTheEvaluators) {
  const expression::Tables tables;
  for (const DType dtype : dtypes()) {
    DenseCall call = single_keys(dtype);
    call.options.tables = tables.views;
    for (std::uint32_t seed = 0; seed < 150; ++seed) {
      expression::RandomExpression random(seed);
      const int size = 2 + random.below(40);
      const Expression score_mod = random.draw(Type::real, size), mask_mod = drawn_mask(random, size / 2);
      if (divides_floats(score_mod) || divides_floats(mask_mod)) continue;
      call.options.score_mod = to_string(score_mod);
      call.options.mask_mod = to_string(mask_mod);
      call.forward(GetParam());
      dtype == DType::f64 ? expect_scores<double>(call, score_mod, mask_mod, tables.views)
                          : expect_scores<float>(call, score_mod, mask_mod, tables.views);
      if (HasFailure()) return;
    }
  }
}

/// What kernels do not visit has no say, whatever it holds: 0 times NaN would be seen.
TEST_P(EvaluatedScores, OfHiddenBlocksAreNotVisited) {
  for (const DType dtype : dtypes()) {
    for (const std::int64_t seqlen_q : {1, 70}) {
      for (const bool by_score : {false, true}) {
        DenseCall call({.seqlen_q = seqlen_q, .seqlen_k = 1100, .heads_q = 2, .heads_k = 1, .dim = 8, .dtype = dtype});
        if (by_score) {
          call.options.score_mod = "select((kv_idx>=600)&(kv_idx<640),score,-inf)";
        } else {
          call.options.mask_mod = "(kv_idx>=600)&(kv_idx<640)";
        }
        DenseCall plain = call;
        plain.out = Tensor(dtype, {1, seqlen_q, 2, 4});
        plain.forward(GetParam());
        for (std::int64_t j = 0; j < 1100; ++j) {
          if (j >= 512 && j < 768) continue;  // the blocks of all kernels that have visible keys
          for (std::int64_t d = 0; d < 4; ++d) call.v.set({0, j, 0, d}, NAN);
          for (std::int64_t d = 0; d < 8; ++d) call.k.set({0, j, 0, d}, NAN);
        }
        call.out = Tensor(dtype, {1, seqlen_q, 2, 4});
        call.prepare_backward();
        call.forward(GetParam());
        EXPECT_EQ(largest_difference(call.out, plain.out), 0.0);
        call.backward(GetParam());
        for (const Tensor* gradient : {&call.dq, &call.dk, &call.dv})
          for (const double value : gradient->values()) ASSERT_TRUE(std::isfinite(value));
      }
    }
  }
}

/// Full blocks ask no mask, others do, and both are those of the option.
TEST_P(EvaluatedScores, OfAFunctionAreThoseOfTheOptionItSays) {
  for (const DType dtype : dtypes()) {
    Sizes sizes{.batch = 2, .seqlen_q = 530, .seqlen_k = 530, .heads_q = 4, .heads_k = 2, .dim = 16, .dim_v = 8};
    sizes.dtype = dtype;
    DenseCall option(sizes), function(sizes);
    option.options.mask = Mask::causal;
    option.options.window_left = 300;
    function.options.mask_mod = "(kv_idx<=q_idx)&(kv_idx>=q_idx-300)";
    for (DenseCall* call : {&option, &function}) {
      call->prepare_backward(true);
      call->forward(GetParam());
      call->backward(GetParam());
    }
    for (Tensor DenseCall::* result :
         {&DenseCall::out, &DenseCall::lse, &DenseCall::dq, &DenseCall::dk, &DenseCall::dv})
      EXPECT_EQ(largest_difference(option.*result, function.*result), 0.0);
  }
}

}  // namespace

TILEWISE_FOR_EVERY_OTHER_IMPLEMENTATION(EvaluatedScores);

}  // namespace tilewise::test
