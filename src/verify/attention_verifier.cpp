// Attention's problems and calls, as the checks of any operation take them.
#include "operations/attention/attention.hpp"
#include "verify/call_tensors.hpp"
#include "verify/verifier.hpp"
#include "verify/verify.hpp"

namespace tilewise::verify {
namespace {

class AttentionVerifier final : public Verifier {
 public:
  [[nodiscard]] const core::OperationInterface& operation() const override {
    constexpr const Problem* kTag = nullptr;
    return operation_of(kTag);
  }
  [[nodiscard]] AnyProblem random_problem(std::uint64_t seed, const Limits& limits) const override {
    return verify::random_problem(seed, filter_of(limits));
  }
  [[nodiscard]] AnyProblem resized(const AnyProblem& problem, std::uint64_t seed, const Limits& limits) const override {
    return resized_problem(problem.get<Problem>(), seed, filter_of(limits));
  }
  [[nodiscard]] std::unique_ptr<const DrawnCall> draw(const AnyProblem& problem, std::uint64_t seed,
                                                      Values values) const override {
    return std::make_unique<CallTensors>(problem.get<Problem>(), seed, values);
  }

 private:
  static Filter filter_of(const Limits& limits) {
    using operations::attention::FeatureSet;
    return {FeatureSet::from_bits(limits.features & FeatureSet::all().bits()), limits.max_flops,
            limits.head_dim_multiple};
  }
};

}  // namespace

template <>
const Verifier& verifier<operations::Attention>() {
  static const AttentionVerifier verifier;
  return verifier;
}

}  // namespace tilewise::verify
