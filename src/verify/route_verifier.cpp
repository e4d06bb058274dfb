// Drawing route's problems, with numbers of experts around the lanes of kernels.
#include <algorithm>

#include "operations/route/route.hpp"
#include "verify/route_call.hpp"
#include "verify/schema_verifier.hpp"

namespace tilewise::verify {
namespace {

using operations::Route, operations::route::Feature, operations::route::FeatureSet;

class RouteVerifier final : public SchemaVerifier<Route, RouteCall> {
  [[nodiscard]] RouteProblem begin(FeatureSet features, Random& rng) const override {
    const bool forward = features.contains(Feature::forward), backward = features.contains(Feature::backward);
    if (!forward && !backward) core::invalid_argument("filter: must leave forward or backward (got neither)");
    RouteProblem problem;
    problem.pass = backward && (rng.chance(0.4) || !forward) ? RoutePass::route_backward : RoutePass::route;
    problem.dtype = lasting_dtype(features, operations::route::feature_of);
    problem.tokens = 3, problem.num_experts = 8, problem.top_k = 2;
    problem.score = lasting_score(features);
    return problem;
  }
  static RouteScore lasting_score(FeatureSet features) {
    if (features.contains(Feature::softmax)) return RouteScore::softmax;
    if (features.contains(Feature::sigmoid)) return RouteScore::sigmoid;
    if (features.contains(Feature::sqrt_softplus)) return RouteScore::sqrt_softplus;
    if (features.contains(Feature::identity)) return RouteScore::identity;
    core::invalid_argument("filter: must leave softmax, sigmoid, sqrt_softplus or identity (got none)");
  }

  [[nodiscard]] std::int64_t draw_size(std::string_view key, std::int64_t by_default, Random& rng) const override {
    if (key == "tokens") return rng.chance(0.03) ? 0 : rng.integer(1, rng.chance(0.5) ? 5 : 70);
    if (key == "num_experts")
      return rng.chance(0.5) ? rng.pick<std::int64_t>({8, 16, 32, 64, 96, 128, 160, 256, 384, 512})
                             : rng.integer(1, 130);
    if (key == "top_k") return rng.chance(0.8) ? rng.integer(1, 10) : rng.integer(1, 70);
    if (key == "n_group") return rng.chance(0.5) ? 1 : rng.pick<std::int64_t>({2, 3, 4, 8, 16, 32});
    if (key == "topk_group") return rng.integer(1, 8);
    return by_default;
  }
  [[nodiscard]] double draw_number(std::string_view key, double by_default, Random& rng) const override {
    if (key == "epsilon") return rng.pick({0.0, 1e-20, 1e-6, 0.37124});
    if (key == "routed_scaling_factor") return rng.pick({1.0, 1.0, 2.5, -0.75, 0.0});
    return by_default;
  }

  void fit_cost(RouteProblem& p, double max_flops) const override {
    constexpr double kFlopsAnExpert = 40.0;
    while (kFlopsAnExpert * static_cast<double>(p.tokens * p.num_experts) > max_flops && p.tokens > 1)
      p.tokens = 2 * p.tokens / 3;
  }
};

}  // namespace

template <>
const Verifier& verifier<Route>() {
  static const RouteVerifier verifier;
  return verifier;
}

}  // namespace tilewise::verify
