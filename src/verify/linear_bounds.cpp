// Errors of sums, of what the activation makes of them, and of gradients, evaluated in double along the reference's own
// formulas.
#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "backends/reference/activation_math.hpp"
#include "backends/reference/matrix_access.hpp"
#include "operations/elements.hpp"
#include "operations/linear/groups.hpp"
#include "verify/coarse_sums.hpp"
#include "verify/estimate.hpp"
#include "verify/linear_call.hpp"

namespace tilewise::verify {
namespace {

using backends::reference::clamped, backends::reference::load, backends::reference::Slope;
using operations::linear::LinearParams;

constexpr std::int64_t kNobody = -1;

/// A sum of products, one factor of which is an estimate. Beside SumOfEstimates it keeps squares beyond f64, and an
/// error where magnitudes alone overflow.
class Sum {
 public:
  void add(const Estimate& a, double factor) {
    value_ += a.value * factor;
    magnitude_ += std::abs(a.value * factor);
    limit_ += a.limit * std::abs(factor);
    const long double sigma = static_cast<long double>(a.sigma) * factor;
    square_ += sigma * sigma;
    ++terms_;
  }
  /// Summed in an order of the kernel's choice, each step rounded by u. What is not finite is so without an error.
  [[nodiscard]] Estimate rounded(double u, double tiny) const {
    if (!std::isfinite(value_)) return {value_};
    const double own = u * (4.0 * std::sqrt(static_cast<double>(terms_)) + 8.0) * magnitude_ + tiny;
    return {value_, terms_ == 0 ? 0.0 : limit_ + own, std::hypot(static_cast<double>(std::sqrt(square_)), 0.5 * own)};
  }

 private:
  double value_ = 0.0, magnitude_ = 0.0, limit_ = 0.0;
  long double square_ = 0.0L;  // of large numbers beyond f64
  std::int64_t terms_ = 0;
};

class Pass {
 public:
  Pass(const LinearParams& p, const LinearProblem& problem, const std::vector<Output>& expected)
      : p_(p),
        problem_(problem),
        experts_(static_cast<std::size_t>(problem.tokens), kNobody),
        bounds_(no_errors(expected)) {
    const DType sums = problem.dtype == DType::f64 ? DType::f64 : DType::f32;
    u_ = unit_roundoff(sums);
    tiny_ = smallest_rounding(sums);
    const bool narrow = problem.dtype == DType::bf16 || problem.dtype == DType::f16;
    r_ = narrow ? unit_roundoff(problem.dtype) : 0.0;
    coarse_ = problem.x_format.defined() ? unit_roundoff(DType::bf16) : r_;
    tiny_row_ = narrow ? smallest_rounding(problem.dtype) : 0.0;
    operations::linear::Groups groups(p);
    for (std::int64_t expert = 0; expert < problem.num_experts; ++expert) {
      const std::int64_t begin = groups.end();
      std::fill(experts_.begin() + begin, experts_.begin() + groups.next(), expert);
    }
  }

  std::vector<ErrorBounds> run() && {
    if (problem_.pass == LinearPass::linear) {
      for_each_result(
          [&](std::int64_t row, std::int64_t n) { set(find("out"), row * problem_.n + n, output(row, n)); });
      return std::move(bounds_);
    }
    dsums_.resize(static_cast<std::size_t>(problem_.tokens * problem_.n));
    for_each_result([&](std::int64_t row, std::int64_t n) { dsum(row, n) = gradient_of_sum(row, n); });
    if (problem_.dx) rows();
    if (problem_.dw) weights();
    if (problem_.dbias) biases();
    return std::move(bounds_);
  }

 private:
  [[nodiscard]] std::int64_t expert_of(std::int64_t row) const { return experts_[static_cast<std::size_t>(row)]; }
  Estimate& dsum(std::int64_t row, std::int64_t n) { return dsums_[static_cast<std::size_t>(row * problem_.n + n)]; }

  /// Of all rows that are in a group.
  template <typename Visit>
  void for_each_result(const Visit& visit) const {
    for (std::int64_t row = 0; row < problem_.tokens; ++row)
      for (std::int64_t n = 0; expert_of(row) != kNobody && n < problem_.n; ++n) visit(row, n);
  }

  [[nodiscard]] ErrorBounds* find(std::string_view name) { return find_bounds(bounds_, name); }
  static void set(ErrorBounds* bounds, std::int64_t index, const Estimate& estimate) {
    if (!std::isfinite(estimate.limit) || !std::isfinite(estimate.sigma)) return;
    bounds->limit[static_cast<std::size_t>(index)] = estimate.limit;
    bounds->sigma[static_cast<std::size_t>(index)] = estimate.sigma;
  }

  /// What the activation is given.
  [[nodiscard]] Estimate sum(std::int64_t row, std::int64_t n) const {
    const std::int64_t expert = expert_of(row);
    Sum sum;
    for (std::int64_t k = 0; k < problem_.k; ++k) sum.add({load(p_.x, p_.x_scales, row, k)}, load(p_.w, expert, n, k));
    if (p_.bias.data != nullptr) sum.add({load(p_.bias, expert, n)}, 1.0);
    Estimate all = sum.rounded(u_, tiny_);
    if (problem_.x_format.defined() && problem_.w_format.element == DType::fp8_e4m3) {
      const double coarse = coarse_error(row, expert, n);
      if (std::isfinite(coarse)) all.limit += coarse, all.sigma = std::hypot(all.sigma, 0.5 * coarse);
    }
    return all;
  }
  /// Of fp8 by fp8, of which the matrix unit sums up to 128 products at most.
  [[nodiscard]] double coarse_error(std::int64_t row, std::int64_t expert, std::int64_t n) const {
    constexpr std::int64_t kPromoted = 128;
    double error = 0.0;
    for (std::int64_t begin = 0; begin < problem_.k; begin += kPromoted)
      error += coarse_products_error(std::min(kPromoted, problem_.k - begin), [&](std::int64_t i) {
        return static_cast<double>(load(p_.x, p_.x_scales, row, begin + i)) * load(p_.w, expert, n, begin + i);
      });
    return error;
  }

  [[nodiscard]] bool is_identity() const { return problem_.activation == Activation::identity; }

  /// The activation at `s` and where `s` may be instead.
  struct Around {
    Slope<double> at, below, above;
  };
  [[nodiscard]] Around around(const Estimate& s) const {
    return {clamped(p_.activation, s.value), clamped(p_.activation, s.value - s.limit),
            clamped(p_.activation, s.value + s.limit)};
  }

  /// A few roundings of what a function's argument and value are made of. Of 16-bit rows the exponential may be
  /// coarser.
  [[nodiscard]] Estimate output(std::int64_t row, std::int64_t n) const {
    constexpr double kRoundings = 16.0, kCoarse = 0.01;
    const Estimate s = sum(row, n);
    if (is_identity()) return s;
    const Around f = around(s);
    const double steepest =
        std::max({std::abs(f.at.derivative), std::abs(f.below.derivative), std::abs(f.above.derivative)});
    const double own = kRoundings * u_ * (std::abs(f.at.value) + std::abs(s.value * f.at.derivative)) +
                       kCoarse * coarse_ * std::abs(f.at.value) + tiny_;
    return {f.at.value, steepest * s.limit + own, std::hypot(steepest * s.sigma, 0.5 * own)};
  }

  /// Rounded to the dtype of x before it is multiplied.
  [[nodiscard]] Estimate gradient_of_sum(std::int64_t row, std::int64_t n) const {
    constexpr double kRoundings = 16.0, kCoarse = 0.02;
    const double dout = load(p_.dout, row, n);
    Estimate d{dout};
    if (!is_identity()) {
      const Around f = around(sum(row, n));
      const double own = kRoundings * u_ * (1.0 + std::abs(f.at.derivative)) + kCoarse * coarse_;
      d.value = dout * f.at.derivative;
      d.limit = std::abs(dout) * (own + std::max(std::abs(f.below.derivative - f.at.derivative),
                                                 std::abs(f.above.derivative - f.at.derivative)));
      d.sigma = 0.5 * d.limit;
    }
    const double rounding = r_ * std::abs(d.value) + tiny_row_;
    return {d.value, d.limit + rounding, std::hypot(d.sigma, rounding)};
  }

  void rows() {
    for (std::int64_t row = 0; row < problem_.tokens; ++row) {
      const std::int64_t expert = expert_of(row);
      for (std::int64_t k = 0; expert != kNobody && k < problem_.k; ++k) {
        Sum sum;
        for (std::int64_t n = 0; n < problem_.n; ++n) sum.add(beside_w(dsum(row, n)), load(p_.w, expert, n, k));
        set(find("dx"), row * problem_.k + k, sum.rounded(u_, tiny_));
      }
    }
  }

  /// A quantised weight, with its scale, may be rounded to the dtype of x there.
  [[nodiscard]] Estimate beside_w(const Estimate& dsum) const {
    if (!problem_.w_format.defined()) return dsum;
    const double rounding = r_ * std::abs(dsum.value);
    return {dsum.value, dsum.limit + rounding, std::hypot(dsum.sigma, rounding)};
  }

  /// Of the rows of one expert.
  template <typename Factor>
  [[nodiscard]] Estimate over_rows(std::int64_t expert, std::int64_t n, const Factor& factor) {
    Sum sum;
    for (std::int64_t row = 0; row < problem_.tokens; ++row)
      if (expert_of(row) == expert) sum.add(dsum(row, n), factor(row));
    return sum.rounded(u_, tiny_);
  }
  void weights() {
    for (std::int64_t i = 0; i < problem_.num_experts * problem_.n; ++i)
      for (std::int64_t k = 0; k < problem_.k; ++k)
        set(find("dw"), i * problem_.k + k,
            over_rows(i / problem_.n, i % problem_.n, [&](std::int64_t row) { return load(p_.x, row, k); }));
  }
  void biases() {
    for (std::int64_t i = 0; i < problem_.num_experts * problem_.n; ++i)
      set(find("dbias"), i, over_rows(i / problem_.n, i % problem_.n, [](std::int64_t) { return 1.0; }));
  }

  const LinearParams& p_;
  const LinearProblem& problem_;
  std::vector<std::int64_t> experts_;
  double u_ = 0.0, tiny_ = 0.0;      ///< of sums
  double r_ = 0.0, tiny_row_ = 0.0;  ///< of 16-bit x
  double coarse_ = 0.0;              ///< of the bf16 that quantised x is widened to, else of 16-bit x
  std::vector<ErrorBounds> bounds_;
  std::vector<Estimate> dsums_;
};

}  // namespace

std::vector<ErrorBounds> linear_bounds(const LinearParams& params, const LinearProblem& problem,
                                       const std::vector<Output>& expected) {
  return Pass(params, problem, expected).run();
}

}  // namespace tilewise::verify
