// The CPU's router against the reference, on logits with ties, infinities and NaN among them.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "backends/cpu/route/route_kernel.hpp"
#include "backends/reference/route/reference_route.hpp"
#include "support.hpp"

namespace tilewise {
namespace {

using experts_test::at, experts_test::id_at, experts_test::set, experts_test::Tensors;
using operations::route::ChosenBy, operations::route::GroupValue, operations::route::Normalise;
using operations::route::OutsideGroups, operations::route::RouteParams, operations::route::Score;
using operations::route::Weigh;

RouteParams draw_route(Tensors& tensors) {
  verify::Random& random = tensors.random;
  RouteParams p{};
  const std::int64_t tokens = random.integer(0, 40), groups = random.chance(0.5) ? 1 : random.integer(2, 8);
  const std::int64_t experts = groups * random.integer(1, 12),
                     top_k = random.integer(1, std::min<std::int64_t>(experts, 9));
  p.logits = tensors.matrix(random.pick({DType::f32, DType::bf16, DType::f16, DType::f64}), tokens, experts,
                            {.by_columns = random.chance(0.2)});
  const bool special = random.chance(0.3);
  for (std::int64_t i = 0; i < tokens * experts; ++i) {
    const std::int64_t t = i / experts, e = i % experts;
    if (random.chance(0.2)) set(p.logits, t, e, std::round(at(p.logits, t, e)));  // ties
    if (special && random.chance(0.02))
      set(p.logits, t, e, random.pick({std::nan(""), -HUGE_VAL, 40.0, HUGE_VAL, -0.0}));
  }
  if (random.chance(0.4)) p.bias = tensors.vector(DType::f32, experts);
  if (random.chance(0.2)) p.scale_of_expert = tensors.vector(DType::bf16, experts);
  p.topk_ids = tensors.ids(random.pick({DType::i32, DType::i64}), tokens, top_k, [] { return -7; });
  p.topk_weights = tensors.matrix(random.pick({DType::f32, DType::bf16}), tokens, top_k);
  p.score = random.pick({Score::softmax, Score::sigmoid, Score::sqrt_softplus, Score::identity});
  p.chosen_by = random.pick({ChosenBy::score, ChosenBy::logits});
  p.n_group = groups;
  p.topk_group = random.integer(1, groups);
  p.group_value = random.pick({GroupValue::greatest, GroupValue::sum_of_two});
  p.outside_groups = random.pick({OutsideGroups::minus_infinity, OutsideGroups::zero});
  p.weigh = random.pick({Weigh::score, Weigh::softmax_of_chosen, Weigh::sigmoid_of_chosen});
  p.normalise = random.pick({Normalise::no, Normalise::sum_plus_epsilon, Normalise::at_least_epsilon});
  p.epsilon = random.pick({0.0, 1e-20, 1e-6, 0.5});
  p.routed_scaling_factor = random.pick({1.0, 2.5});
  return p;
}

TEST(CpuRoute, EqualsTheReference) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    Tensors tensors(seed);
    const RouteParams p = draw_route(tensors);
    RouteParams reference = p;
    reference.topk_ids = tensors.ids(DType::i64, p.topk_ids.rows, p.topk_ids.columns, [] { return -9; });
    reference.topk_weights = tensors.matrix(p.topk_weights.dtype, p.topk_ids.rows, p.topk_ids.columns);
    backends::cpu::run_route(p);
    backends::reference::route_forward(reference);
    for (std::int64_t i = 0; i < p.topk_ids.rows * p.topk_ids.columns; ++i) {
      const std::int64_t t = i / p.topk_ids.columns, j = i % p.topk_ids.columns;
      ASSERT_EQ(id_at(p.topk_ids, t, j), id_at(reference.topk_ids, t, j)) << "seed " << seed << " token " << t;
      const double weight = at(p.topk_weights, t, j), expected = at(reference.topk_weights, t, j);
      ASSERT_EQ(std::isnan(weight), std::isnan(expected)) << "seed " << seed << " token " << t;
      if (weight == expected || std::isnan(weight)) continue;
      ASSERT_NEAR(weight, expected, 1e-6 * std::abs(expected) + 1e-30) << "seed " << seed << " token " << t;
    }
  }
}

}  // namespace
}  // namespace tilewise
