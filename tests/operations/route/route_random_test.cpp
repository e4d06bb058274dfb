// Random problems on every row of route against the reference, and that the bounds are tight enough to see an error.
#include <algorithm>
#include <cmath>

#include "../../support/random_rows.hpp"
#include "device/common/float16.h"
#include "route_support.hpp"
#include "verify/route_call.hpp"
#include "verify/verifier.hpp"
#include "verify/verify.hpp"

namespace tilewise {
namespace {

using operations::route::Feature, operations::route::FeatureSet;

class RouteRandom : public testing::TestWithParam<std::string> {
 protected:
  void check(Feature other_pass, std::uint64_t first, int count) {
    count = problems_of(count);
    constexpr const RouteProblem* kTag = nullptr;
    const verify::Verifier& verifier = verify::verifier_of(operation_of(kTag));
    const verify::Limits limits{FeatureSet::all().minus({other_pass}).bits(), 2e5};
    int failures = 0;
    for (std::uint64_t seed = first; seed < first + static_cast<std::uint64_t>(count) && failures < 5; ++seed) {
      const verify::Report report =
          verify::check_implementation(verifier.random_problem(seed, limits), GetParam(), seed);
      if (report.status == verify::Status::passed) continue;
      ++failures;
      ADD_FAILURE() << report.to_string();
    }
  }
};

TEST_P(RouteRandom, Forward) { check(Feature::backward, 700000, 600); }
TEST_P(RouteRandom, Backward) { check(Feature::forward, 800000, 600); }

INSTANTIATE_TEST_SUITE_P(Rows, RouteRandom, testing::Values("cpu.generic", "reference"), case_of_row);

/// Each result rounded to bf16 once, as by a kernel that computes in bf16: the bound must break, by far.
TEST(RouteBounds, SeeALostRounding) {
  for (const char* text : {"route tokens=9 num_experts=64 top_k=8 normalise=sum_plus_epsilon",
                           "route tokens=9 num_experts=64 top_k=8 score=sigmoid",
                           "route tokens=9 num_experts=64 top_k=8 score=sqrt_softplus normalise=at_least_epsilon",
                           "route_backward tokens=9 num_experts=64 top_k=8 normalise=sum_plus_epsilon",
                           "route_backward tokens=9 num_experts=64 top_k=8 weigh=softmax_of_chosen"}) {
    const verify::RouteCall call(parse_problem(text), 14, verify::Values::ordinary);
    const std::vector<verify::Output> expected = call.make_outputs(1);
    call.run(call.plan("reference", expected), expected);
    const std::vector<verify::ErrorBounds> bounds = call.bounds(expected, 0.0);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (expected[i].model != verify::Model::bounded) continue;
      double largest = 0.0;
      std::size_t index = 0;
      const TensorView& view = expected[i].buffer.view();
      verify::for_each_element(view, [&](std::span<const std::int64_t>, std::int64_t offset) {
        const double value = verify::value_at(view, offset);
        const double rounded = device::bf16_to_float(device::float_to_bf16(static_cast<float>(value)));
        if (bounds[i].limit[index] > 0.0)
          largest = std::max(largest, std::abs(rounded - value) / bounds[i].limit[index]);
        ++index;
      });
      EXPECT_GT(largest, 20.0) << expected[i].name << " of " << text;
    }
  }
}

/// Numbers as close as rounding brings them leave the choice in doubt, equal ones do not.
TEST(RouteBounds, KnowAClearChoice) {
  const RouteProblem problem = parse_problem("route tokens=1 num_experts=4 top_k=2 score=sigmoid");
  const auto is_clear = [&](const std::vector<double>& logits, const std::vector<double>& bias) {
    return verify::RouteToken(problem, logits).choice_is_clear(bias);
  };
  EXPECT_TRUE(is_clear({1.0, 2.0, 3.0, 0.5}, {}));
  EXPECT_TRUE(is_clear({1.0, 2.0, 1.0, 2.0}, {}));
  EXPECT_TRUE(is_clear({30.0, 40.0, 50.0, 25.0}, {}));      // all are 1
  EXPECT_FALSE(is_clear({1.0, 1.0 + 1e-7, 1.0, 0.0}, {}));  // which is second?
  EXPECT_TRUE(is_clear({1.0, 2.0, 0.0, 1e-8}, {}));         // not chosen, either of them
  EXPECT_FALSE(is_clear({0.1, 0.0, 0.0, 30.0}, {0.47502081, 0, 0, 0}));
  EXPECT_TRUE(is_clear({std::nan(""), 1.0, 2.0, 0.0}, {}));
}

}  // namespace
}  // namespace tilewise
