// Errors of results and of gradients of experts, evaluated in double along the reference's own formulas.
#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "verify/moe_call.hpp"
#include "verify/moe_part.hpp"

namespace tilewise::verify {
namespace {

using operations::moe::MoeParams;

bool any_not_finite(const std::vector<double>& values, std::int64_t first, std::int64_t count) {
  return !values.empty() && std::any_of(values.begin() + first, values.begin() + first + count,
                                        [](double value) { return !std::isfinite(value); });
}

class Pass {
 public:
  Pass(const MoeParams& p, const MoeProblem& problem, const std::vector<Output>& expected)
      : p_(p), problem_(problem), numbers_(p), precision_(problem), bounds_(no_errors(expected)) {
    for (ErrorBounds& bounds : bounds_) bounds.reach.assign(bounds.limit.size(), Reach::none);
    const auto experts = static_cast<std::size_t>(numbers_.num_experts);
    if (problem.pass == MoePass::moe) return;
    gate_up_.resize(problem.dgate_up ? numbers_.gate_up.size() : 0);
    down_.resize(problem.ddown ? numbers_.down.size() : 0);
    gate_up_bias_.resize(problem.dgate_up_bias ? experts * static_cast<std::size_t>(numbers_.rows) : 0);
    down_bias_.resize(problem.ddown_bias ? experts * static_cast<std::size_t>(numbers_.hidden) : 0);
  }

  std::vector<ErrorBounds> run() && {
    const bool forward = problem_.pass == MoePass::moe;
    for (std::int64_t token = 0; token < numbers_.tokens; ++token) forward ? result(token) : gradients(token);
    if (forward) return std::move(bounds_);
    finish("dgate_up", gate_up_);
    finish("ddown", down_);
    finish("dgate_up_bias", gate_up_bias_);
    finish("ddown_bias", down_bias_);
    free_what_is_touched();
    return std::move(bounds_);
  }

 private:
  [[nodiscard]] std::int64_t expert_of(std::int64_t token, std::int64_t j) const {
    return numbers_.experts[static_cast<std::size_t>(token * numbers_.top_k + j)];
  }
  [[nodiscard]] std::int64_t saved_row(std::int64_t token, std::int64_t j) const {
    return numbers_.saved_rows[static_cast<std::size_t>(token * numbers_.top_k + j)];
  }
  [[nodiscard]] ErrorBounds* find(std::string_view name) { return find_bounds(bounds_, name); }
  static void set(ErrorBounds* bounds, std::int64_t index, const Estimate& estimate) {
    if (bounds == nullptr || !std::isfinite(estimate.limit) || !std::isfinite(estimate.sigma)) return;
    bounds->limit[static_cast<std::size_t>(index)] = estimate.limit;
    bounds->sigma[static_cast<std::size_t>(index)] = estimate.sigma;
  }
  void finish(std::string_view name, const std::vector<SumOfEstimates>& sums) {
    for (std::size_t i = 0; i < sums.size(); ++i)
      set(find(name), static_cast<std::int64_t>(i), sums[i].rounded(precision_.u, precision_.tiny));
  }
  /// As an operand or a part of a sum in the dtype of rows.
  [[nodiscard]] Estimate narrowed(const Estimate& value) const {
    return value.rounded(precision_.r, precision_.tiny_row);
  }

  void result(std::int64_t token) {
    std::vector<SumOfEstimates> sums(static_cast<std::size_t>(numbers_.hidden));
    for (std::int64_t j = 0; j < numbers_.top_k; ++j) {
      const std::int64_t expert = expert_of(token, j);
      if (expert == MoeNumbers::kNobody) continue;
      const MoePart part = part_of(numbers_, p_, precision_, token, j, expert);
      for (std::int64_t row = 0; row < numbers_.rows && problem_.save_gate_up; ++row)
        set(find("gate_up_out"), saved_row(token, j) * numbers_.rows + numbers_.saved_column(row),
            part.sums[static_cast<std::size_t>(row)]);
      for (std::size_t n = 0; n < sums.size(); ++n) sums[n].add(narrowed(part.z[n].times(part.output_weight)));
    }
    for (std::size_t n = 0; n < sums.size(); ++n)
      set(find("out"), token * numbers_.hidden + static_cast<std::int64_t>(n),
          sums[n].rounded(precision_.u, precision_.tiny));
  }

  void gradients(std::int64_t token) {
    std::vector<SumOfEstimates> dx(static_cast<std::size_t>(numbers_.hidden));
    for (std::int64_t j = 0; j < numbers_.top_k; ++j) {
      const std::int64_t expert = expert_of(token, j);
      if (expert == MoeNumbers::kNobody) continue;
      const MoePart part = part_of(numbers_, p_, precision_, token, j, expert);
      const std::vector<Estimate> dz = gradients_of_z(token, part), dp = gradients_of_products(expert, part, dz);
      add_to_weights(token, expert, part, dz, dp);
      input_gradients(token, j, expert, part, dp, dx);
    }
    for (std::size_t k = 0; k < dx.size(); ++k)
      set(find("dx"), token * numbers_.hidden + static_cast<std::int64_t>(k),
          dx[k].rounded(precision_.u, precision_.tiny));
  }

  [[nodiscard]] double dout(std::int64_t token, std::size_t n) const {
    return numbers_.dout[static_cast<std::size_t>(token * numbers_.hidden) + n];
  }

  [[nodiscard]] std::vector<Estimate> gradients_of_z(std::int64_t token, const MoePart& part) const {
    std::vector<Estimate> dz;
    for (std::size_t n = 0; n < part.z.size(); ++n)
      dz.push_back(narrowed(Estimate{part.output_weight * dout(token, n)}.rounded(precision_.u, precision_.tiny)));
    return dz;
  }

  /// Of rows of gate_up without their bias. What comes of the second weights may be rounded as well as its product with
  /// the derivative.
  [[nodiscard]] std::vector<Estimate> gradients_of_products(std::int64_t expert, const MoePart& part,
                                                            const std::vector<Estimate>& dz) const {
    std::vector<Estimate> products(static_cast<std::size_t>(numbers_.rows));
    for (std::int64_t i = 0; i < numbers_.intermediate; ++i) {
      SumOfEstimates sum;
      for (std::size_t n = 0; n < dz.size(); ++n)
        sum.add(dz[n], numbers_.down_row(expert, static_cast<std::int64_t>(n))[i]);
      const Estimate dh = narrowed(sum.rounded(precision_.u, precision_.tiny));
      const auto at = static_cast<std::size_t>(i);
      products[static_cast<std::size_t>(numbers_.up_row(i))] = narrowed(product(dh, part.by_up[at]));
      if (numbers_.gated)
        products[static_cast<std::size_t>(numbers_.gate_row(i))] = narrowed(product(dh, part.by_gate[at]));
    }
    return products;
  }

  void add_to_weights(std::int64_t token, std::int64_t expert, const MoePart& part, const std::vector<Estimate>& dz,
                      const std::vector<Estimate>& dp) {
    const double* x = numbers_.x.data() + token * numbers_.hidden;
    const std::int64_t hidden = numbers_.hidden, intermediate = numbers_.intermediate;
    for (std::int64_t row = 0; row < numbers_.rows; ++row) {
      const Estimate& d = dp[static_cast<std::size_t>(row)];
      const auto first = static_cast<std::size_t>((expert * numbers_.rows + row) * hidden);
      for (std::int64_t k = 0; !gate_up_.empty() && k < hidden; ++k) {
        const Estimate input{part.input_weight * x[k]};
        gate_up_[first + static_cast<std::size_t>(k)].add(product(d, p_.weight_on_input ? narrowed(input) : input));
      }
      if (!gate_up_bias_.empty()) gate_up_bias_[static_cast<std::size_t>(expert * numbers_.rows + row)].add(d);
    }
    for (std::int64_t n = 0; n < hidden; ++n) {
      const Estimate& d = dz[static_cast<std::size_t>(n)];
      const auto first = static_cast<std::size_t>((expert * hidden + n) * intermediate);
      for (std::int64_t i = 0; !down_.empty() && i < intermediate; ++i)
        down_[first + static_cast<std::size_t>(i)].add(product(d, part.h[static_cast<std::size_t>(i)]));
      if (!down_bias_.empty()) down_bias_[static_cast<std::size_t>(expert * hidden + n)].add(d);
    }
  }

  /// dx's parts, and dtopk_weights: of products with the expert's output or, on the input, with x. A kernel may sum the
  /// latter in another order, of products with what came before: the magnitude is that of all terms.
  void input_gradients(std::int64_t token, std::int64_t j, std::int64_t expert, const MoePart& part,
                       const std::vector<Estimate>& dp, std::vector<SumOfEstimates>& dx) {
    const double* x = numbers_.x.data() + token * numbers_.hidden;
    SumOfEstimates dweight;
    double magnitude = 0.0;
    for (std::size_t n = 0; n < part.z.size() && !p_.weight_on_input; ++n) {
      dweight.add(part.z[n], dout(token, n));
      magnitude += part.z_magnitude[n] * std::abs(dout(token, n));
    }
    for (std::int64_t k = 0; k < numbers_.hidden; ++k) {
      SumOfEstimates dinput;  // of x times its weight
      for (std::int64_t row = 0; row < numbers_.rows; ++row)
        dinput.add(dp[static_cast<std::size_t>(row)], numbers_.gate_up_row(expert, row)[k]);
      const Estimate one = dinput.rounded(precision_.u, precision_.tiny);
      dx[static_cast<std::size_t>(k)].add(narrowed(one.times(part.input_weight)));
      if (!p_.weight_on_input || problem_.save_gate_up) continue;
      dweight.add(narrowed(one), x[k]);
      magnitude += dinput.magnitude() * std::abs(x[k]);
    }
    for (std::int64_t row = 0; row < numbers_.rows && p_.weight_on_input && problem_.save_gate_up; ++row) {
      const auto at = static_cast<std::size_t>(row);
      dweight.add(product(dp[at], part.sums[at]));
      magnitude += std::abs(dp[at].value * part.sums[at].value);
    }
    Estimate estimate = dweight.rounded(precision_.u, precision_.tiny);
    const double other =
        (precision_.r + precision_.u * (4.0 * std::sqrt(static_cast<double>(numbers_.rows)) + 8.0)) * magnitude;
    estimate.limit += other;
    estimate.sigma = std::hypot(estimate.sigma, 0.5 * other);
    set(find("dtopk_weights"), token * numbers_.top_k + j, estimate);
  }

  /// What a number that is none may reach: of a token's own its gradients and those of its experts' weights, of a
  /// weight the gradients of its expert and of the tokens there.
  void free_what_is_touched() {
    std::vector<bool> expert_has(static_cast<std::size_t>(numbers_.num_experts)), expert_free;
    for (std::int64_t e = 0; e < numbers_.num_experts; ++e) {
      const std::int64_t rows = numbers_.rows, hidden = numbers_.hidden, intermediate = numbers_.intermediate;
      expert_has[static_cast<std::size_t>(e)] =
          any_not_finite(numbers_.gate_up, e * rows * hidden, rows * hidden) ||
          any_not_finite(numbers_.down, e * hidden * intermediate, hidden * intermediate) ||
          any_not_finite(numbers_.gate_up_bias, e * rows, rows) ||
          any_not_finite(numbers_.down_bias, e * hidden, hidden);
    }
    expert_free = expert_has;
    for (std::int64_t t = 0; t < numbers_.tokens; ++t) {
      const std::int64_t hidden = numbers_.hidden, top_k = numbers_.top_k;
      const bool own =
          any_not_finite(numbers_.x, t * hidden, hidden) || any_not_finite(numbers_.dout, t * hidden, hidden);
      bool any = false;
      for (std::int64_t j = 0; j < top_k; ++j) {
        const std::int64_t expert = expert_of(t, j);
        if (expert == MoeNumbers::kNobody) continue;
        const bool part =
            own || any_not_finite(numbers_.weights, t * top_k + j, 1) ||
            (!numbers_.saved.empty() && any_not_finite(numbers_.saved, saved_row(t, j) * numbers_.rows, numbers_.rows));
        if (part) expert_free[static_cast<std::size_t>(expert)] = true;
        if (!part && !expert_has[static_cast<std::size_t>(expert)]) continue;
        set_free("dtopk_weights", t * top_k + j, 1);
        any = true;
      }
      if (any) set_free("dx", t * hidden, hidden);
    }
    for (std::int64_t e = 0; e < numbers_.num_experts; ++e)
      for (const char* name : {"dgate_up", "ddown", "dgate_up_bias", "ddown_bias"})
        if (expert_free[static_cast<std::size_t>(e)]) set_expert_free(name, e);
  }
  void set_free(const std::string& name, std::int64_t first, std::int64_t count) {
    if (ErrorBounds* bounds = find(name)) std::fill_n(bounds->reach.begin() + first, count, Reach::any);
  }
  void set_expert_free(const std::string& name, std::int64_t expert) {
    if (const ErrorBounds* bounds = find(name)) {
      const std::int64_t size = static_cast<std::int64_t>(bounds->reach.size()) / numbers_.num_experts;
      set_free(name, expert * size, size);
    }
  }

  const MoeParams& p_;
  const MoeProblem& problem_;
  MoeNumbers numbers_;
  MoePrecision precision_;
  std::vector<ErrorBounds> bounds_;
  std::vector<SumOfEstimates> gate_up_, down_, gate_up_bias_, down_bias_;
};

}  // namespace

std::vector<ErrorBounds> moe_bounds(const MoeParams& params, const MoeProblem& problem,
                                    const std::vector<Output>& expected) {
  return Pass(params, problem, expected).run();
}

}  // namespace tilewise::verify
