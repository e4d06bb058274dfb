// Drawing problems of experts, with sizes around the blocks of kernels and of formats.
#include <algorithm>

#include "operations/moe/moe.hpp"
#include "verify/moe_call.hpp"
#include "verify/schema_verifier.hpp"

namespace tilewise::verify {
namespace {

using operations::Moe, operations::moe::Feature, operations::moe::FeatureSet;

class MoeVerifier final : public SchemaVerifier<Moe, MoeCall> {
  [[nodiscard]] MoeProblem begin(FeatureSet features, Random& rng) const override {
    const bool forward = features.contains(Feature::forward);
    const bool gradients = features.contains(Feature::dx) || features.contains(Feature::dweights) ||
                           features.contains(Feature::dtopk_weights);
    const bool backward = features.contains(Feature::backward) && gradients;
    if (!forward && !backward)
      core::invalid_argument("filter: must leave forward, or backward and a gradient (got neither)");
    MoeProblem problem;
    problem.pass = backward && (rng.chance(0.4) || !forward) ? MoePass::moe_backward : MoePass::moe;
    if (problem.pass == MoePass::moe_backward) {
      problem.dx = features.contains(Feature::dx);
      problem.dtopk_weights = features.contains(Feature::dtopk_weights);
      problem.dgate_up = problem.ddown = features.contains(Feature::dweights);
    }
    problem.dtype = problem.out_dtype = lasting_dtype(features, operations::moe::feature_of);
    problem.weights_dtype = operations::statistics_dtype(problem.dtype);
    return problem;
  }

  [[nodiscard]] std::int64_t draw_size(std::string_view key, std::int64_t by_default, Random& rng) const override {
    if (key == "tokens") {
      if (rng.chance(0.03)) return 0;
      return rng.chance(0.05) ? rng.integer(370, 420) : rng.integer(1, rng.chance(0.6) ? 12 : 130);
    }
    if (key == "hidden" || key == "intermediate") {
      if (rng.chance(0.02)) return 0;
      return rng.chance(0.4) ? 32 * rng.integer(1, 9) : rng.integer(1, rng.chance(0.8) ? 90 : 300);
    }
    if (key == "num_experts") return rng.chance(0.02) ? 0 : rng.pick<std::int64_t>({1, 2, 3, 4, 8, 17, 40});
    if (key == "top_k") return rng.chance(0.02) ? 0 : rng.pick<std::int64_t>({1, 1, 2, 2, 3, 4, 8, 11});
    if (key == "first_expert") return rng.chance(0.7) ? 0 : rng.pick<std::int64_t>({1, 8, 1000, std::int64_t{1} << 40});
    return by_default;
  }

  [[nodiscard]] double draw_number(std::string_view key, double by_default, Random& rng) const override {
    if (key == "alpha") return rng.pick({kSwigluOaiAlpha, kSwigluOaiAlpha, 1.0, -0.5});
    if (key == "limit") return rng.pick({by_default, 0.25, 1.0, 10.0});
    return rng.pick({by_default, 0.0, 1e-5, 0.1});  // norm_epsilon
  }

  /// Keeps odd sizes odd.
  void fit_cost(MoeProblem& p, double max_flops) const override {
    const auto less = [](const std::int64_t* a, const std::int64_t* b) { return *a < *b; };
    while (operations::moe::flops(p) > max_flops) {
      std::int64_t& largest = *std::max({&p.tokens, &p.hidden, &p.intermediate, &p.top_k}, less);
      if (largest <= 2) return;
      largest = 2 * largest / 3;
    }
  }
};

}  // namespace

template <>
const Verifier& verifier<Moe>() {
  static const MoeVerifier verifier;
  return verifier;
}

}  // namespace tilewise::verify
