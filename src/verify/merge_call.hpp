// The tensors of one merge call, drawn from a seed for a problem: parts that saw nothing among the others.
#pragma once

#include <cstdint>
#include <vector>

#include "operations/merge/merge.hpp"
#include "verify/schema_call.hpp"

namespace tilewise::verify {

class MergeCall final : public SchemaCall<operations::Merge> {
 public:
  MergeCall(const MergeProblem& problem, std::uint64_t seed, Values values);
  [[nodiscard]] std::vector<Output> make_outputs(std::uint64_t seed) const override;
  [[nodiscard]] std::vector<ErrorBounds> bounds(const std::vector<Output>& expected,
                                                double /*tanh_error*/) const override;

 private:
  void draw_part(std::int64_t n);
  void draw_large_values();
  void plant_special_values();

  Random special_rng_;  ///< of its own, so that all else is as without special values
};

/// How far from the reference a correct kernel may be, element by element: weights within a few roundings of what
/// exponents and differences of log-sum-exps leave, sums within theirs. As in error_bounds.hpp.
[[nodiscard]] std::vector<ErrorBounds> merge_bounds(const operations::merge::MergeParams& params,
                                                    const MergeProblem& problem, const std::vector<Output>& expected);

}  // namespace tilewise::verify
