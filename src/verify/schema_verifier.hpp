// The Verifier of an operation by its schema: what a random problem begins with, its sizes and its cost are the
// operation's to say; all other fields are drawn by the list of them.
#pragma once

#include <memory>
#include <string_view>
#include <type_traits>

#include "core/message.hpp"
#include "verify/draw_fields.hpp"
#include "verify/verifier.hpp"

namespace tilewise::verify {

/// `Call` is the operation's SchemaCall, made of a problem, a seed and the kind of values.
template <typename Op, typename Call>
class SchemaVerifier : public Verifier {
 public:
  using Problem = typename Op::Problem;
  using Features = core::FeatureSetOf<typename Op::Feature>;

  [[nodiscard]] const core::OperationInterface& operation() const override {
    constexpr const Problem* kTag = nullptr;
    return operation_of(kTag);
  }
  [[nodiscard]] AnyProblem random_problem(std::uint64_t seed, const Limits& limits) const override {
    Random rng(seed);
    const auto base = begin(Features::from_bits(limits.features & Features::all().bits()), rng);
    Problem problem = draw_fields<Op>(base, rng, limits, [this, &rng](std::string_view key, auto value) {
      if constexpr (std::is_floating_point_v<decltype(value)>)
        return draw_number(key, value, rng);
      else
        return draw_size(key, value, rng);
    });
    fit_cost(problem, limits.max_flops);
    return problem;
  }
  [[nodiscard]] std::unique_ptr<const DrawnCall> draw(const AnyProblem& problem, std::uint64_t seed,
                                                      Values values) const override {
    return std::make_unique<Call>(problem.get<Problem>(), seed, values);
  }

 protected:
  /// A valid problem within the features, of a kind of call that they leave.
  [[nodiscard]] virtual Problem begin(Features features, Random& rng) const = 0;
  /// Of the field `key`.
  [[nodiscard]] virtual std::int64_t draw_size(std::string_view key, std::int64_t by_default, Random& rng) const = 0;
  [[nodiscard]] virtual double draw_number(std::string_view /*key*/, double by_default, Random& /*rng*/) const {
    return by_default;
  }
  /// Shrinks what the cost grows with.
  virtual void fit_cost(Problem& problem, double max_flops) const = 0;

  /// The first of a few dtypes that the features leave.
  static DType lasting_dtype(Features features, typename Op::Feature (*feature_of)(DType)) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
      if (features.contains(feature_of(dtype))) return dtype;
    core::invalid_argument("filter: must leave f32, bf16, f16 or f64 (got none)");
  }
};

}  // namespace tilewise::verify
