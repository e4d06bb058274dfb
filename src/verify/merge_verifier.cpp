// Drawing merge's problems, with sizes around the blocks of kernels.
#include <algorithm>

#include "operations/merge/merge.hpp"
#include "verify/merge_call.hpp"
#include "verify/schema_verifier.hpp"

namespace tilewise::verify {
namespace {

using operations::Merge, operations::merge::Feature, operations::merge::FeatureSet;

/// Multiply-adds of all parts, twice that of the backward pass.
double cost(const MergeProblem& p) {
  const double elements = static_cast<double>(operations::merge::rows_of(p)) * static_cast<double>(p.parts) *
                          static_cast<double>(p.head_dim_v);
  return (p.pass == MergePass::merge ? 2.0 : 4.0) * elements;
}

class MergeVerifier final : public SchemaVerifier<Merge, MergeCall> {
  [[nodiscard]] MergeProblem begin(FeatureSet features, Random& rng) const override {
    const bool forward = features.contains(Feature::forward), backward = features.contains(Feature::backward);
    if (!forward && !backward) core::invalid_argument("filter: must leave forward or backward (got neither)");
    MergeProblem problem;
    problem.pass = backward && (rng.chance(0.5) || !forward) ? MergePass::merge_backward : MergePass::merge;
    problem.head_dim_v = 1;
    problem.dtype = lasting_dtype(features, operations::merge::feature_of);
    return problem;
  }

  [[nodiscard]] std::int64_t draw_size(std::string_view key, std::int64_t by_default, Random& rng) const override {
    if (key == "parts") return rng.pick<std::int64_t>({1, 2, 2, 2, 3, 4, 5, 8, 15, 16, 17, 33, 40});
    if (key == "batch_size") return rng.chance(0.02) ? 0 : rng.pick<std::int64_t>({1, 1, 2, 3});
    if (key == "seqlen_q" || key == "total_q") return rng.chance(0.03) ? 0 : rng.integer(1, rng.chance(0.3) ? 4 : 70);
    if (key == "num_heads_q") return rng.pick<std::int64_t>({1, 2, 3, 4, 8, 15, 16, 17, 32});
    if (key != "head_dim_v") return by_default;
    return rng.chance(0.5) ? rng.pick<std::int64_t>({8, 32, 64, 80, 96, 128, 128, 192, 256, 512})
                           : rng.integer(1, rng.chance(0.7) ? 70 : 512);
  }

  /// Keeps odd sizes odd.
  void fit_cost(MergeProblem& p, double max_flops) const override {
    while (cost(p) > max_flops) {
      std::int64_t& largest = *std::max({&p.batch_size, &p.seqlen_q, &p.num_heads_q, &p.parts},
                                        [](const std::int64_t* a, const std::int64_t* b) { return *a < *b; });
      if (largest <= 2) return;
      largest = 2 * largest / 3;
    }
  }
};

}  // namespace

template <>
const Verifier& verifier<Merge>() {
  static const MergeVerifier verifier;
  return verifier;
}

}  // namespace tilewise::verify
