// Drawing problems of linear layers, with sizes around the blocks of kernels and of formats.
#include <algorithm>

#include "operations/linear/linear.hpp"
#include "verify/linear_call.hpp"
#include "verify/schema_verifier.hpp"

namespace tilewise::verify {
namespace {

using operations::Linear, operations::linear::Feature, operations::linear::FeatureSet;

class LinearVerifier final : public SchemaVerifier<Linear, LinearCall> {
  [[nodiscard]] LinearProblem begin(FeatureSet features, Random& rng) const override {
    const bool forward = features.contains(Feature::forward);
    const bool backward =
        features.contains(Feature::backward) && (features.contains(Feature::dx) || features.contains(Feature::dw));
    if (!forward && !backward)
      core::invalid_argument("filter: must leave forward, or backward with dx or dw (got neither)");
    LinearProblem problem;
    problem.pass = backward && (rng.chance(0.4) || !forward) ? LinearPass::linear_backward : LinearPass::linear;
    if (problem.pass == LinearPass::linear_backward) {
      problem.dx = features.contains(Feature::dx);
      problem.dw = features.contains(Feature::dw);
    }
    problem.dtype = problem.out_dtype = lasting_dtype(features, operations::linear::feature_of);
    return problem;
  }

  [[nodiscard]] std::int64_t draw_size(std::string_view key, std::int64_t by_default, Random& rng) const override {
    if (key == "tokens") {
      if (rng.chance(0.03)) return 0;
      return rng.chance(0.1) ? rng.integer(370, 420) : rng.integer(1, rng.chance(0.6) ? 12 : 130);
    }
    if (key == "n") return rng.chance(0.02) ? 0 : rng.integer(1, rng.chance(0.8) ? 90 : 300);
    if (key == "k") {
      if (rng.chance(0.03)) return 0;
      return rng.chance(0.3) ? 32 * rng.integer(1, 16) : rng.integer(1, rng.chance(0.8) ? 140 : 700);
    }
    if (key == "num_experts") return rng.chance(0.02) ? 0 : rng.pick<std::int64_t>({1, 1, 2, 3, 5, 8, 17});
    return by_default;
  }

  /// Keeps odd sizes odd.
  void fit_cost(LinearProblem& p, double max_flops) const override {
    while (operations::linear::flops(p) > max_flops) {
      std::int64_t& largest =
          *std::max({&p.tokens, &p.n, &p.k}, [](const std::int64_t* a, const std::int64_t* b) { return *a < *b; });
      if (largest <= 2) return;
      largest = 2 * largest / 3;
    }
  }
};

}  // namespace

template <>
const Verifier& verifier<Linear>() {
  static const LinearVerifier verifier;
  return verifier;
}

}  // namespace tilewise::verify
