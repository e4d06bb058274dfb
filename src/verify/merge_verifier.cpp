// Drawing merge's problems: by the list of fields, with sizes around the blocks of kernels.
#include <algorithm>

#include "core/message.hpp"
#include "operations/merge/merge.hpp"
#include "verify/draw_fields.hpp"
#include "verify/merge_call.hpp"
#include "verify/verifier.hpp"

namespace tilewise::verify {
namespace {

using operations::Merge, operations::merge::Feature, operations::merge::FeatureSet;

/// Multiply-adds of all parts, twice that of the backward pass.
double cost(const MergeProblem& p) {
  const double elements = static_cast<double>(operations::merge::rows_of(p)) * static_cast<double>(p.parts) *
                          static_cast<double>(p.head_dim_v);
  return (p.pass == MergePass::merge ? 2.0 : 4.0) * elements;
}

std::int64_t draw_size(std::string_view key, std::int64_t by_default, Random& rng) {
  if (key == "parts") return rng.pick<std::int64_t>({1, 2, 2, 2, 3, 4, 5, 8, 15, 16, 17, 33, 40});
  if (key == "batch_size") return rng.chance(0.02) ? 0 : rng.pick<std::int64_t>({1, 1, 2, 3});
  if (key == "seqlen_q" || key == "total_q") return rng.chance(0.03) ? 0 : rng.integer(1, rng.chance(0.3) ? 4 : 70);
  if (key == "num_heads_q") return rng.pick<std::int64_t>({1, 2, 3, 4, 8, 15, 16, 17, 32});
  if (key == "head_dim_v") {
    return rng.chance(0.5) ? rng.pick<std::int64_t>({8, 32, 64, 80, 96, 128, 128, 192, 256, 512})
                           : rng.integer(1, rng.chance(0.7) ? 70 : 512);
  }
  return by_default;
}

/// Shrinks the largest of what the cost grows with, keeping odd sizes odd.
void fit_cost(MergeProblem& p, double max_flops) {
  while (cost(p) > max_flops) {
    std::int64_t& largest = *std::max({&p.batch_size, &p.seqlen_q, &p.num_heads_q, &p.parts},
                                      [](const std::int64_t* a, const std::int64_t* b) { return *a < *b; });
    if (largest <= 2) return;
    largest = 2 * largest / 3;
  }
}

class MergeVerifier final : public Verifier {
 public:
  [[nodiscard]] const core::OperationInterface& operation() const override {
    constexpr const MergeProblem* kTag = nullptr;
    return operation_of(kTag);
  }

  [[nodiscard]] AnyProblem random_problem(std::uint64_t seed, const Limits& limits) const override {
    Random rng(seed);
    const FeatureSet features = FeatureSet::from_bits(limits.features & FeatureSet::all().bits());
    const bool forward = features.contains(Feature::forward), backward = features.contains(Feature::backward);
    if (!forward && !backward) core::invalid_argument("filter: must leave forward or backward (got neither)");
    MergeProblem base;
    base.pass = backward && (rng.chance(0.5) || !forward) ? MergePass::merge_backward : MergePass::merge;
    base.head_dim_v = 1;
    base.dtype = lasting_dtype(features);
    MergeProblem problem = draw_fields<Merge>(
        base, rng, limits, [&rng](std::string_view key, std::int64_t value) { return draw_size(key, value, rng); });
    fit_cost(problem, limits.max_flops);
    return problem;
  }

  [[nodiscard]] std::unique_ptr<const DrawnCall> draw(const AnyProblem& problem, std::uint64_t seed,
                                                      Values values) const override {
    return std::make_unique<MergeCall>(problem.get<MergeProblem>(), seed, values);
  }

 private:
  /// One that the limits leave.
  static DType lasting_dtype(FeatureSet features) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
      if (features.contains(operations::merge::feature_of(dtype))) return dtype;
    core::invalid_argument("filter: must leave f32, bf16, f16 or f64 (got none)");
  }
};

}  // namespace

template <>
const Verifier& verifier<operations::Merge>() {
  static const MergeVerifier verifier;
  return verifier;
}

}  // namespace tilewise::verify
