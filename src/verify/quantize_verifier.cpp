// Drawing problems of quantising, with sizes around the blocks of formats.
#include <algorithm>

#include "operations/quantize/quantize.hpp"
#include "verify/quantize_call.hpp"
#include "verify/schema_verifier.hpp"

namespace tilewise::verify {
namespace {

using operations::Quantize, operations::quantize::Feature, operations::quantize::FeatureSet;

double cost(const QuantizeProblem& p) {
  constexpr double kOfAnElement = 4.0;
  return kOfAnElement * static_cast<double>(p.num_experts) * static_cast<double>(p.rows) *
         static_cast<double>(p.columns);
}

class QuantizeVerifier final : public SchemaVerifier<Quantize, QuantizeCall> {
  [[nodiscard]] QuantizeProblem begin(FeatureSet features, Random& rng) const override {
    const bool forward = features.contains(Feature::quantize), backward = features.contains(Feature::dequantize);
    if (!forward && !backward) core::invalid_argument("filter: must leave quantize or dequantize (got neither)");
    QuantizeProblem problem;
    problem.pass = backward && (rng.chance(0.4) || !forward) ? QuantizePass::dequantize : QuantizePass::quantize;
    problem.dtype = lasting_dtype(features);
    // One that any features leave; which it is to be is drawn after it.
    for (const BlockFormat& format : block_formats()) {
      problem.format = format;
      if (format.defined() && (operations::quantize::required_features(problem).bits() & ~features.bits()) == 0)
        return problem;
    }
    core::invalid_argument("filter: must leave a format (got none)");
  }
  static DType lasting_dtype(FeatureSet features) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
      if (features.contains(operations::quantize::feature_of(dtype))) return dtype;
    core::invalid_argument("filter: must leave f32, bf16 or f16 (got none)");
  }

  [[nodiscard]] std::int64_t draw_size(std::string_view key, std::int64_t by_default, Random& rng) const override {
    if (key == "num_experts") return rng.chance(0.03) ? 0 : rng.pick<std::int64_t>({1, 1, 2, 3, 5});
    if (key == "rows") {
      if (rng.chance(0.03)) return 0;
      return rng.chance(0.25) ? rng.integer(120, 300) : rng.integer(1, 20);
    }
    if (key != "columns") return by_default;
    if (rng.chance(0.03)) return 0;
    if (rng.chance(0.4)) return 16 * rng.integer(1, 40);
    return rng.integer(1, rng.chance(0.8) ? 140 : 1200);
  }

  /// Keeps odd sizes odd.
  void fit_cost(QuantizeProblem& p, double max_flops) const override {
    while (cost(p) > max_flops) {
      std::int64_t& largest = p.rows > p.columns ? p.rows : p.columns;
      if (largest <= 2) return;
      largest = 2 * largest / 3;
    }
  }
};

}  // namespace

template <>
const Verifier& verifier<Quantize>() {
  static const QuantizeVerifier verifier;
  return verifier;
}

}  // namespace tilewise::verify
