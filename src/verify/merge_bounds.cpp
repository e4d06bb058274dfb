// Errors of the weights and of what is summed with them, evaluated in double along the reference's own formulas.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "core/message.hpp"
#include "operations/elements.hpp"
#include "verify/error_bounds.hpp"
#include "verify/merge_call.hpp"
#include "verify/rounding.hpp"

namespace tilewise::verify {
namespace {

using operations::load_element;
using operations::merge::MergeParams, operations::merge::Part;

std::int64_t row_offset(const device::Tensor4& t, std::int64_t b, std::int64_t s, std::int64_t h) {
  return b * t.batch_stride + s * t.seq_stride + h * t.head_stride;
}
std::int64_t lse_offset(const device::LseTensor& t, std::int64_t b, std::int64_t s, std::int64_t h) {
  return b * t.batch_stride + h * t.head_stride + s * t.seq_stride;
}

/// Weights of one row and their relative errors: each rounding of a log-sum-exp, a difference of two, an exponential,
/// the total, and of intermediate results where the parts are merged in groups. Beside large numbers there are no
/// groups, and the difference of two is exact.
struct RowWeights {
  std::vector<double> weight, error;
  double sink = 0.0, sink_error = 0.0, lse = 0.0, lse_error = 0.0;

  RowWeights(const MergeParams& p, double u, std::int64_t b, std::int64_t s, std::int64_t h) {
    constexpr double kExponentials = 10.0, kLargeLse = 1e3;
    const double own = p.sink == nullptr ? -kInfinity : load_element(p.sink_dtype, p.sink, h * p.sink_stride);
    double largest = own, magnitude = std::isfinite(own) ? std::abs(own) : 0.0;
    for (const Part& part : p.parts) {
      weight.push_back(load_element(p.statistics, part.lse.data, lse_offset(part.lse, b, s, h)));
      largest = std::max(largest, weight.back());
      if (std::isfinite(weight.back())) magnitude = std::max(magnitude, std::abs(weight.back()));
    }
    const double rounding =
        u * (4.0 * std::min(magnitude, kLargeLse) + kExponentials + static_cast<double>(p.parts.size()));
    const auto exponential = [&](double value) { return value == -kInfinity ? 0.0 : std::exp(value - largest); };
    sink = exponential(own);
    sink_error = rounding + 4.0 * u * spread(own, largest);
    double total = sink, total_error = sink * sink_error;
    for (double& value : weight) {
      error.push_back(rounding + 4.0 * u * spread(value, largest));
      value = exponential(value);
      total += value;
      total_error += value * error.back();
    }
    if (total == 0.0) return;
    total_error /= total;
    for (std::size_t n = 0; n < weight.size(); ++n) weight[n] /= total, error[n] += total_error;
    sink /= total;
    sink_error += total_error;
    lse = largest + std::log(total);
    lse_error = total_error + 4.0 * u * std::abs(lse);
  }

 private:
  static double spread(double value, double largest) {
    constexpr double kFar = 1e4;  // exp of it is 0 as it is of all beyond, whose difference may be none of f64
    return std::isfinite(value) && std::isfinite(largest) ? std::min(largest - value, kFar) : 0.0;
  }
};

class Pass {
 public:
  Pass(const MergeParams& p, const MergeProblem& problem, const std::vector<Output>& expected)
      : p_(p),
        problem_(problem),
        u_(unit_roundoff(operations::statistics_dtype(problem.dtype))),
        bounds_(no_errors(expected)) {
    tiny_ = smallest_rounding(operations::statistics_dtype(problem.dtype));
    out_ = find("out");
    lse_ = find("softmax_lse");
    douts_ = find_parts("douts");
    dlses_ = find_parts("dlses");
  }

  std::vector<ErrorBounds> run() && {
    sink_terms_.assign(static_cast<std::size_t>(p_.num_heads_q), 0.0);
    for (std::int64_t b = 0; b < p_.batch_size; ++b)
      for (std::int64_t s = 0; s < p_.seqlen_q; ++s)
        for (std::int64_t h = 0; h < p_.num_heads_q; ++h)
          problem_.pass == MergePass::merge ? forward_row(b, s, h) : backward_row(b, s, h);
    if (problem_.dsink) {
      for (std::size_t h = 0; h < sink_terms_.size(); ++h) {
        const double rows = static_cast<double>(p_.batch_size * p_.seqlen_q);
        set(find("dsink"), static_cast<std::int64_t>(h),
            sink_errors_[h] + u_ * (4.0 * std::sqrt(rows) + 4.0) * sink_terms_[h]);
      }
    }
    return std::move(bounds_);
  }

 private:
  /// Row-major over the whole output, in the order of the layout's dimensions.
  [[nodiscard]] std::int64_t row_index(std::int64_t b, std::int64_t s, std::int64_t h) const {
    switch (problem_.layout) {
      case Layout::sbhd:
        return (s * p_.batch_size + b) * p_.num_heads_q + h;
      case Layout::bhsd:
        return (b * p_.num_heads_q + h) * p_.seqlen_q + s;
      default:
        return (b * p_.seqlen_q + s) * p_.num_heads_q + h;
    }
  }
  [[nodiscard]] std::int64_t lse_index(std::int64_t b, std::int64_t s, std::int64_t h) const {
    return (b * p_.num_heads_q + h) * p_.seqlen_q + s;
  }
  [[nodiscard]] std::int64_t rows() const { return p_.batch_size * p_.seqlen_q * p_.num_heads_q; }

  /// The bounds of that output; null where there is none.
  [[nodiscard]] ErrorBounds* find(std::string_view name) { return find_bounds(bounds_, name); }
  /// Of each part's gradient, which is an output of a list or a slice of the only one.
  [[nodiscard]] std::vector<ErrorBounds*> find_parts(std::string_view role) {
    std::vector<ErrorBounds*> found;
    for (std::size_t n = 0; n < p_.parts.size(); ++n)
      found.push_back(find(core::concat(role, "[", problem_.stacked ? 0 : n, "]")));
    return found;
  }

  /// The limit is a handful of roundings; what single ones leave on average is not predicted any closer than by half.
  static void set(ErrorBounds* bounds, std::int64_t index, double limit) {
    if (bounds == nullptr || !std::isfinite(limit)) return;
    bounds->limit[static_cast<std::size_t>(index)] = limit;
    bounds->sigma[static_cast<std::size_t>(index)] = 0.5 * limit;
  }
  /// `index` counts within one part, which has so many elements.
  void set_part(const std::vector<ErrorBounds*>& parts, std::size_t n, std::int64_t index, std::int64_t elements,
                double limit) const {
    set(parts[n], problem_.stacked ? index + static_cast<std::int64_t>(n) * elements : index, limit);
  }

  [[nodiscard]] double element(const Part& part, std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d) const {
    return load_element(part.dtype, part.out.data, row_offset(part.out, b, s, h) + d);
  }

  void forward_row(std::int64_t b, std::int64_t s, std::int64_t h) {
    const RowWeights w(p_, u_, b, s, h);
    for (std::int64_t d = 0; d < p_.head_dim_v; ++d) {
      double limit = 0.0;
      for (std::size_t n = 0; n < p_.parts.size(); ++n) {
        if (w.weight[n] == 0.0) continue;
        limit += w.weight[n] * std::abs(element(p_.parts[n], b, s, h, d)) * w.error[n] + tiny_;
      }
      set(out_, row_index(b, s, h) * p_.head_dim_v + d, limit);
    }
    set(lse_, lse_index(b, s, h), w.lse_error);
  }

  void backward_row(std::int64_t b, std::int64_t s, std::int64_t h) {
    const RowWeights w(p_, u_, b, s, h);
    const double dlse =
        p_.dlse.data == nullptr ? 0.0 : load_element(p_.statistics, p_.dlse.data, lse_offset(p_.dlse, b, s, h));
    std::vector<double> dots(p_.parts.size()), dot_errors(p_.parts.size());
    double delta = 0.0, delta_error = 0.0;
    for (std::size_t n = 0; n < p_.parts.size(); ++n) {
      if (w.weight[n] == 0.0) continue;
      double magnitude = 0.0;
      for (std::int64_t d = 0; d < p_.head_dim_v; ++d) {
        const double dout = load_element(p_.dtype, p_.dout.data, row_offset(p_.dout, b, s, h) + d);
        const double term = dout * element(p_.parts[n], b, s, h, d);
        dots[n] += term;
        magnitude += std::abs(term);
        const std::int64_t index = row_index(b, s, h) * p_.head_dim_v + d;
        set_part(douts_, n, index, rows() * p_.head_dim_v, w.weight[n] * std::abs(dout) * w.error[n] + tiny_);
      }
      dot_errors[n] = u_ * (4.0 * std::sqrt(static_cast<double>(p_.head_dim_v)) + 8.0) * magnitude;
      delta += w.weight[n] * dots[n];
      delta_error += w.weight[n] * (dot_errors[n] + std::abs(dots[n]) * (w.error[n] + 4.0 * u_));
    }
    for (std::size_t n = 0; n < p_.parts.size(); ++n) {
      if (w.weight[n] == 0.0) continue;
      const double sizes = std::abs(dots[n]) + std::abs(delta) + std::abs(dlse);
      const double limit = w.weight[n] * (dot_errors[n] + delta_error + sizes * (w.error[n] + 4.0 * u_)) + tiny_;
      set_part(dlses_, n, lse_index(b, s, h), rows(), limit);
    }
    const double sizes = std::abs(delta) + std::abs(dlse);
    sink_terms_[static_cast<std::size_t>(h)] += w.sink * sizes;
    sink_errors_[static_cast<std::size_t>(h)] += w.sink * (delta_error + sizes * (w.sink_error + 4.0 * u_));
  }

  const MergeParams& p_;
  const MergeProblem& problem_;
  double u_, tiny_ = 0.0;
  std::vector<ErrorBounds> bounds_;
  ErrorBounds *out_ = nullptr, *lse_ = nullptr;
  std::vector<ErrorBounds*> douts_, dlses_;
  std::vector<double> sink_terms_;
  std::vector<double> sink_errors_ = std::vector<double>(static_cast<std::size_t>(p_.num_heads_q));
};

}  // namespace

std::vector<ErrorBounds> merge_bounds(const MergeParams& params, const MergeProblem& problem,
                                      const std::vector<Output>& expected) {
  return Pass(params, problem, expected).run();
}

}  // namespace tilewise::verify
