// The reference's router against what its definition gives by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "backends/reference/route/reference_route.hpp"
#include "support.hpp"

namespace tilewise {
namespace {

using experts_test::at, experts_test::id_at, experts_test::set, experts_test::sigmoid, experts_test::Tensors;
using operations::route::RouteParams;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// One token's routing.
class Route {
 public:
  Route(const std::vector<double>& logits, std::int64_t top_k, DType ids = DType::i32) {
    const auto experts = static_cast<std::int64_t>(logits.size());
    p.logits = tensors_.matrix(DType::f32, 1, experts);
    for (std::int64_t e = 0; e < experts; ++e) set(p.logits, 0, e, logits[static_cast<std::size_t>(e)]);
    p.topk_ids = tensors_.ids(ids, 1, top_k, [] { return -7; });
    p.topk_weights = tensors_.matrix(DType::f32, 1, top_k);
    p.n_group = p.topk_group = 1;
    p.routed_scaling_factor = 1;
  }

  void add_bias(const std::vector<double>& bias) {
    p.bias = tensors_.vector(DType::f32, static_cast<std::int64_t>(bias.size()));
    for (std::size_t e = 0; e < bias.size(); ++e)
      operations::store_element(DType::f32, p.bias.data, static_cast<std::int64_t>(e), bias[e]);
  }

  std::vector<std::int64_t> ids() {
    backends::reference::route_forward(p);
    std::vector<std::int64_t> ids;
    for (std::int64_t j = 0; j < p.topk_ids.columns; ++j) ids.push_back(id_at(p.topk_ids, 0, j));
    return ids;
  }

  [[nodiscard]] double weight(std::int64_t j) const { return at(p.topk_weights, 0, j); }

  RouteParams p{};

 private:
  Tensors tensors_{1};
};

using Ids = std::vector<std::int64_t>;

TEST(Route, SoftmaxOverAllExpertsThenTheGreatest) {
  Route route({1, 3, 2, -1}, 2);
  EXPECT_EQ(route.ids(), (Ids{1, 2}));
  const double sum = std::exp(1) + std::exp(3) + std::exp(2) + std::exp(-1);
  EXPECT_NEAR(route.weight(0), std::exp(3) / sum, 1e-7);
  EXPECT_NEAR(route.weight(1), std::exp(2) / sum, 1e-7);
  route.p.normalise = RouteNormalise::sum_plus_epsilon;
  EXPECT_EQ(route.ids(), (Ids{1, 2}));
  EXPECT_NEAR(route.weight(0), sigmoid(1), 1e-7);
  route.p.normalise = RouteNormalise::no;
  route.p.weigh = RouteWeigh::softmax_of_chosen;
  EXPECT_EQ(route.ids(), (Ids{1, 2}));
  EXPECT_NEAR(route.weight(1), sigmoid(-1), 1e-7);
}

TEST(Route, ABiasChoosesAndNeverWeighs) {
  Route route({1, 3, 2, -1}, 2, DType::i64);
  route.p.score = RouteScore::sigmoid;
  route.add_bias({0, 0, 0, 1});
  EXPECT_EQ(route.ids(), (Ids{3, 1}));
  EXPECT_NEAR(route.weight(0), sigmoid(-1), 1e-7);
  EXPECT_NEAR(route.weight(1), sigmoid(3), 1e-7);
  route.p.chosen_by = RouteChosenBy::logits;  // -1 + 1 is less than 1
  EXPECT_EQ(route.ids(), (Ids{1, 2}));
}

TEST(Route, EpsilonsAndScales) {
  Route route({0, -2, 1}, 2);
  route.p.score = RouteScore::identity;
  route.p.normalise = RouteNormalise::sum_plus_epsilon;
  route.p.epsilon = 0.5;
  route.p.routed_scaling_factor = 3;
  EXPECT_EQ(route.ids(), (Ids{2, 0}));
  EXPECT_NEAR(route.weight(0), 3 * 1 / 1.5, 1e-6);
  route.p.normalise = RouteNormalise::at_least_epsilon;
  route.p.epsilon = 4;
  EXPECT_EQ(route.ids(), (Ids{2, 0}));
  EXPECT_NEAR(route.weight(0), 0.75, 1e-6);
  Tensors tensors(1);
  route.p.scale_of_expert = tensors.vector(DType::f32, 3);
  EXPECT_EQ(route.ids(), (Ids{2, 0}));
  EXPECT_NEAR(route.weight(0), 0.75 * operations::load_element(DType::f32, route.p.scale_of_expert.data, 2), 1e-6);
}

TEST(Route, SquareRootOfSoftplus) {
  Route route({0, 100, -250}, 3);
  route.p.score = RouteScore::sqrt_softplus;
  EXPECT_EQ(route.ids(), (Ids{1, 0, 2}));
  EXPECT_NEAR(route.weight(0), 10, 1e-6);
  EXPECT_NEAR(route.weight(1), std::sqrt(std::log(2)), 1e-7);
  EXPECT_EQ(route.weight(2), 0);
}

TEST(Route, TiesGoToTheLowerExpertAndNaNIsGreatest) {
  Route ties({2, 5, 5, 2, 5}, 4);
  ties.p.score = RouteScore::identity;
  EXPECT_EQ(ties.ids(), (Ids{1, 2, 4, 0}));
  Route zeros({-0.0, 0.0, 1.0}, 3);
  zeros.p.score = RouteScore::identity;
  EXPECT_EQ(zeros.ids(), (Ids{2, 0, 1}));
  Route nans({kInfinity, kNaN, 3, kNaN}, 3);
  nans.p.score = RouteScore::identity;
  EXPECT_EQ(nans.ids(), (Ids{1, 3, 0}));
  EXPECT_TRUE(std::isnan(nans.weight(0)));
  Route saturated({30, 40, 50}, 2);  // all are 1 in fp32
  saturated.p.score = RouteScore::sigmoid;
  EXPECT_EQ(saturated.ids(), (Ids{0, 1}));
  Route hidden({-kInfinity, -kInfinity, -kInfinity}, 3);
  hidden.p.score = RouteScore::identity;
  EXPECT_EQ(hidden.ids(), (Ids{0, 1, 2}));
}

TEST(Route, GroupsStayByTheirGreatestOrTheSumOfTwo) {
  Route route({5, 0, 3, 3, 4, 1}, 2);
  route.p.score = RouteScore::identity;
  route.p.n_group = 3;
  route.p.topk_group = 1;
  EXPECT_EQ(route.ids(), (Ids{0, 1}));  // 5 is the greatest
  route.p.group_value = RouteGroupValue::sum_of_two;
  EXPECT_EQ(route.ids(), (Ids{2, 3}));  // 3 + 3
  route.p.topk_group = 2;
  EXPECT_EQ(route.ids(), (Ids{0, 2}));  // 5 + 0 and 4 + 1 tie: the lower group
}

TEST(Route, OutsideOfGroupsCountsAsMinusInfinityOrZero) {
  Route route({-1, -2, -3, -4}, 2);
  route.p.score = RouteScore::identity;
  route.p.n_group = 2;
  route.p.topk_group = 1;
  EXPECT_EQ(route.ids(), (Ids{0, 1}));
  route.p.outside_groups = RouteOutsideGroups::zero;
  EXPECT_EQ(route.ids(), (Ids{2, 3}));
  EXPECT_EQ(route.weight(0), -3);
  route.p.outside_groups = RouteOutsideGroups::minus_infinity;
  route.p.topk_ids.columns = route.p.topk_weights.columns = 1;
  route.p.logits.columns = 4;
  EXPECT_EQ(route.ids(), (Ids{0}));
}

}  // namespace
}  // namespace tilewise
