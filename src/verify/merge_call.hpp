// The tensors of one merge call, drawn from a seed for a problem: random strides and placement, parts that saw
// nothing among the others, guarded outputs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "operations/merge/merge.hpp"
#include "verify/drawn_call.hpp"

namespace tilewise::verify {

/// Everything a call reads, a pure function of (problem, seed, values). All views have the dimensions of the layout.
class MergeCall final : public DrawnCall {
 public:
  MergeCall(const MergeProblem& problem, std::uint64_t seed, Values values);

  [[nodiscard]] const MergeProblem& problem() const { return problem_; }
  [[nodiscard]] AnyProblem any_problem() const override { return problem_; }
  [[nodiscard]] std::vector<Output> make_outputs(std::uint64_t seed) const override;
  [[nodiscard]] MergeArguments forward_arguments(const std::vector<Output>& outputs) const;
  [[nodiscard]] MergeBackwardArguments backward_arguments(const std::vector<Output>& outputs) const;

  using DrawnCall::plan;
  [[nodiscard]] Plan plan(std::string_view implementation, const std::vector<Output>& outputs,
                          const Change& change) const override;
  void launch(const Plan& plan, const std::vector<Output>& outputs, void* workspace,
              const Change& change) const override;
  [[nodiscard]] std::vector<ErrorBounds> bounds(const std::vector<Output>& expected,
                                                double /*tanh_error*/) const override;

 private:
  [[nodiscard]] bool forward() const { return problem_.pass == MergePass::merge; }
  /// Of one part's out or log-sum-exp, or of all of them where they are stacked.
  [[nodiscard]] std::vector<std::int64_t> rows_shape() const;
  [[nodiscard]] std::vector<std::int64_t> lse_shape() const;
  [[nodiscard]] std::vector<std::int64_t> of_parts(std::vector<std::int64_t> shape) const;
  /// How many tensors each list holds.
  [[nodiscard]] std::size_t list_size() const;
  [[nodiscard]] DType part_dtype(std::size_t n) const;
  [[nodiscard]] Placement rows_placement(DType dtype, std::size_t rank, Random& rng) const;
  [[nodiscard]] std::vector<std::string_view> rows_axes(bool of_parts) const;
  [[nodiscard]] std::vector<std::string_view> lse_axes(bool of_parts) const;

  TensorView add(std::string name, DType dtype, const std::vector<std::int64_t>& shape, const Placement& placement);
  void draw_parts();
  void draw_part(std::int64_t n);
  void draw_gradients();
  void draw_large_values();
  void plant_special_values();

  MergeProblem problem_;
  Random rng_;
  Random special_rng_;  ///< of its own, so that all else is as without special values
  bool aligned_;
  std::vector<TensorView> outs_, lses_;
  TensorView sink_, dout_, dlse_;
};

/// How far from the reference a correct kernel may be, element by element: weights within a few roundings of what
/// exponents and differences of log-sum-exps leave, sums within theirs. As in error_bounds.hpp.
[[nodiscard]] std::vector<ErrorBounds> merge_bounds(const operations::merge::MergeParams& params,
                                                    const MergeProblem& problem, const std::vector<Output>& expected);

}  // namespace tilewise::verify
