// The error model of error_bounds.hpp, evaluated in double along the reference's own formulas.
#include "verify/error_bounds.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "backends/reference/reference_math.hpp"
#include "core/parallel.hpp"
#include "operations/attention/call.hpp"
#include "operations/attention/table_sums.hpp"
#include "verify/coarse_sums.hpp"
#include "verify/weight_errors.hpp"

namespace tilewise::verify {
namespace {

using backends::reference::Head;
using backends::reference::HeadContext;
using backends::reference::load_lse;
using backends::reference::Numbers;
using backends::reference::Rows;
using device::AttentionParams;

/// First-order bounds with typical constants: what stands between them and an alarm.
constexpr double kSafety = 1.25;
/// An exponential that is rounded to 8 or 11 bits anyway may be off by this part of that rounding.
constexpr double kExpPart = 0.01;

/// Of what a kernel computes in: its unit roundoff, and what flushed subnormals and weights below its range lose.
double working_roundoff(DType dtype) { return dtype == DType::f64 ? 0x1p-53 : 0x1p-24; }
double working_tiny(DType dtype) { return dtype == DType::f64 ? 1e-290 : 1e-30; }

/// Of a score gradient as an operand: its own, and those of the weight and of the difference that it is the product of.
constexpr double kGradientRoundings = 3.0;

/// What is summed for one element: errors in f32 (linear), the terms' magnitudes and squares.
struct Sums {
  double linear = 0.0, magnitude = 0.0, square = 0.0;
  void add(double error, double term) {
    linear += error;
    magnitude += std::abs(term);
    square += term * term;
  }
};

/// Weights in fp8: their rounding, and the least they are told apart by where a row's greatest is 2^6.
constexpr double kFp8WeightRoundoff = 0x1p-4, kFp8LeastWeight = 0x1p-16;

/// A growing sum per element of one head's rows, and how many terms each row has.
struct RowSums {
  std::int64_t width;
  std::vector<Sums> sums;
  std::vector<std::int64_t> terms;
  RowSums(std::int64_t rows, std::int64_t row_width)
      : width(row_width), sums(static_cast<std::size_t>(rows * row_width)), terms(static_cast<std::size_t>(rows)) {}

  /// Adds factor[d] times a coefficient with this absolute error.
  void add(std::int64_t row, double error, double coefficient, const double* factor) {
    Sums* s = sums.data() + row * width;
    for (std::int64_t d = 0; d < width; ++d) s[d].add(error * std::abs(factor[d]), coefficient * factor[d]);
    ++terms[static_cast<std::size_t>(row)];
  }
};

bool is_half(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }

class BoundsPass {
 public:
  BoundsPass(const AttentionParams& params, const Problem& problem, double tanh_error, std::vector<ErrorBounds>& bounds)
      : p_(params),
        numbers_(problem),
        dtype_(problem.dtype),
        u_(working_roundoff(dtype_)),
        tiny_(working_tiny(dtype_)),
        r_(fp8()             ? kFp8WeightRoundoff
           : is_half(dtype_) ? unit_roundoff(dtype_)
                             : 0.0),
        r_tiny_(dtype_ == DType::f16 ? smallest_rounding(dtype_) : 0.0),
        exp_(kExpPart * (fp8() ? unit_roundoff(DType::bf16) : r_)),
        tanh_error_(tanh_error),
        coarse_sums_(fp8()),
        look_ups_(operations::attention::wanted_look_ups(problem)),
        bounds_(bounds) {}

  void forward_head(std::int64_t b, std::int64_t h);
  void backward_key_head(std::int64_t b, std::int64_t h_k);

 private:
  struct Weight {
    double score, slope, score_error;  // score_error: of the whole, score_slope_error: of softcap's factor
    double slope_error;
    bool visible;
    double mod_slope = 1.0, mod_slope_error = 0.0;    // score_mod's derivative
    double unmodified = 0.0, unmodified_error = 0.0;  // of the score before score_mod
  };

  [[nodiscard]] ErrorBounds* find(std::string_view name) { return find_bounds(bounds_, name); }
  [[nodiscard]] bool fp8() const { return dtype_ == DType::fp8_e4m3; }
  [[nodiscard]] bool packed() const { return p_.cu_seqlens_q != nullptr; }
  /// Row-major index of element 0 of a row of a [batch, seq, head, dim] output.
  [[nodiscard]] std::size_t row_index(std::int64_t b, std::int64_t seqlen, std::int64_t row, std::int64_t h,
                                      std::int64_t heads, std::int64_t dim) const {
    return static_cast<std::size_t>((((packed() ? 0 : b) * seqlen + row) * heads + h) * dim);
  }
  [[nodiscard]] std::size_t lse_row_index(const HeadContext& c, std::int64_t i) const {
    return static_cast<std::size_t>(packed() ? c.h * p_.total_q + c.sequence.q_row + i
                                             : (c.b * p_.num_heads_q + c.h) * p_.seqlen_q + i);
  }

  void finish(ErrorBounds& bounds, std::size_t index, const Sums& sums, std::int64_t terms, double roundings) const {
    if (terms == 0) return;
    const double base = kSafety * (sums.linear + (2.0 + std::sqrt(static_cast<double>(terms))) * u_ * sums.magnitude +
                                   coarse_sum_error(terms) * sums.magnitude) +
                        tiny_;
    bounds.limit[index] = base + roundings * r_ * sums.magnitude;
    bounds.sigma[index] = std::sqrt(base * base + roundings * r_ * r_ * sums.square);
  }
  void finish_rows(ErrorBounds* bounds, const RowSums& rows, std::int64_t b, std::int64_t seqlen, std::int64_t first,
                   std::int64_t h, std::int64_t heads, double roundings = 1.0) const {
    if (!bounds) return;
    for (std::size_t row = 0; row < rows.terms.size(); ++row) {
      const auto r = static_cast<std::int64_t>(row);
      const std::size_t index = row_index(b, seqlen, first + r, h, heads, rows.width);
      for (std::int64_t d = 0; d < rows.width; ++d) {
        finish(*bounds, index + static_cast<std::size_t>(d), rows.sums[static_cast<std::size_t>(r * rows.width + d)],
               rows.terms[row], roundings);
      }
    }
  }

  [[nodiscard]] double sum_error(std::int64_t terms) const {
    return (4.0 + std::sqrt(static_cast<double>(terms))) * u_;
  }
  /// Of a sum of products beside that of fp32's roundings, as a part of its magnitude.
  [[nodiscard]] double coarse_sum_error(std::int64_t terms) const {
    if (!coarse_sums_) return 0.0;
    return (3.0 + std::sqrt(static_cast<double>(terms) / static_cast<double>(kFp8SumTerms))) * kFp8SumRoundoff;
  }
  [[nodiscard]] double product_error(const HeadContext& c, const double* q, const double* k) const;
  [[nodiscard]] Weight weight(const HeadContext& c, std::int64_t i, std::int64_t j, const double* q,
                              const double* k) const;
  [[nodiscard]] Weight modified(const HeadContext& c, std::int64_t i, std::int64_t j, double unmodified,
                                Weight weight) const;
  void add_to_table(const expression::LookUpDerivative& look_up, const HeadContext& c, std::int64_t i, std::int64_t j,
                    const Weight& w, double gradient, double gradient_error);
  void backward_row(const HeadContext& c, std::int64_t i, const double* q, const double* out, const double* dout,
                    const Rows& k, const Rows& v, RowSums& dq, RowSums& dk, RowSums& dv);
  void add_shared(std::string_view name, std::size_t index, double error, double term) {
    ErrorBounds* bounds = find(name);
    if (!bounds) return;
    bounds->limit[index] += kSafety * (error + 8.0 * u_ * std::abs(term)) + tiny_;
    bounds->sigma[index] = bounds->limit[index];
  }

  const AttentionParams& p_;
  Numbers numbers_;
  DType dtype_;
  double u_, tiny_;    // of what kernels compute in
  double r_, r_tiny_;  // of weights as operands
  double exp_;         // of their exponentials
  double tanh_error_;  // of a softcap's tanh, relative, beside u_
  bool coarse_sums_;
  std::vector<expression::LookUpDerivative> look_ups_;  // of tables whose gradients are wanted
  std::vector<ErrorBounds>& bounds_;
};

double dot_magnitude(const double* a, const double* b, std::int64_t n) {
  double sum = 0.0;
  for (std::int64_t d = 0; d < n; ++d) sum += std::abs(a[d] * b[d]);
  return sum;
}

/// Of scale * q.k, rounded once: none where the products' sum is exact, whatever its order.
double BoundsPass::product_error(const HeadContext& c, const double* q, const double* k) const {
  constexpr double kLarge = 16.0;                             // of smaller scores nobody asks
  const double magnitude = dot_magnitude(q, k, p_.head_dim);  // an infinite product is exactly that, and so is its cap
  if (!std::isfinite(magnitude)) return 0.0;
  const double scale = std::abs(c.softmax_scale), sum = scale * sum_error(p_.head_dim) * magnitude;
  if (coarse_sums_)
    return sum + scale * coarse_products_error(p_.head_dim, [&](std::int64_t d) { return q[d] * k[d]; });
  return scale * magnitude > kLarge && sums_exactly(q, k, p_.head_dim, u_) ? 0.0 : sum;
}

BoundsPass::Weight BoundsPass::weight(const HeadContext& c, std::int64_t i, std::int64_t j, const double* q,
                                      const double* k) const {
  const auto [score, slope, unbiased, unmodified, mod_slope] = c.score(i, j, q, k);
  if (score == -kInfinity) return {score, slope, 0.0, 0.0, false};
  const double bias = c.bias(i, j), alibi = std::abs(c.alibi(i, j)), cap = numbers_.factors.softcap;
  const double of_product = product_error(c, q, k);
  const double slope_error = cap > 0
                                 ? 2.0 * std::sqrt(std::max(0.0, 1.0 - slope)) * (slope * of_product / cap + 4.0 * u_) +
                                       2.0 * u_ + 2.0 * (1.0 - slope) * tanh_error_
                                 : 0.0;
  // Of the capped score itself: ALiBi behind it may take nearly all of it away.
  const double capped_error = cap > 0 ? (8.0 * u_ + tanh_error_) * cap * std::sqrt(std::max(0.0, 1.0 - slope)) : 0.0;
  const double before = of_product + capped_error;
  // Beside a large bias nothing of the score is left, and what was exact is rounded once.
  const bool lost = vanishes_beside(std::abs(unbiased) + alibi, before, bias, u_);
  const bool exact = before == 0.0 && (alibi == 0.0 || vanishes_beside(alibi, 0.0, unmodified, u_));
  const double added = std::abs(unmodified) + 2.0 * std::abs(bias);  // alibi is at most their sum and the capped score
  const double error = lost || exact ? 0.0 : before + 6.0 * u_ * added;
  const Weight weight{score, slope, error, slope_error, true};
  return numbers_.functions.score_mod ? modified(c, i, j, unmodified, weight) : weight;
}

/// What score_mod makes of a score's error: that of its values nearby, and of computing it in less than double.
BoundsPass::Weight BoundsPass::modified(const HeadContext& c, std::int64_t i, std::int64_t j, double unmodified,
                                        Weight weight) const {
  const double error = weight.score_error, score = c.functions.score(unmodified, i, j);
  weight.unmodified = unmodified;
  weight.unmodified_error = error;
  weight.mod_slope = c.functions.slope(unmodified, i, j);
  weight.score_error = 0.0;
  for (const double near : {unmodified - error, unmodified + error}) {
    weight.score_error = std::max(weight.score_error, std::abs(c.functions.score(near, i, j) - score));
    weight.mod_slope_error =
        std::max(weight.mod_slope_error, std::abs(c.functions.slope(near, i, j) - weight.mod_slope));
  }
  if (dtype_ == DType::f64) return weight;
  const auto [score_lost, slope_lost] = c.functions.lost_in_single(unmodified, i, j);
  weight.score_error += 4.0 * score_lost + 16.0 * u_ * std::abs(score);
  weight.mod_slope_error += 4.0 * slope_lost + 16.0 * u_ * std::abs(weight.mod_slope);
  return weight;
}

void BoundsPass::forward_head(std::int64_t b, std::int64_t h) {
  const HeadContext c(p_, numbers_, b, h);
  const device::Sequence& s = c.sequence;
  const std::int64_t h_k = h / (p_.num_heads_q / p_.num_heads_k);
  const Rows q = Head(p_.q, dtype_, b, s.q_row, h, p_.head_dim).read_rows(s.seqlen_q);
  const Rows k = Head(p_.k, dtype_, b, s.k_row, h_k, p_.head_dim).read_rows(s.seqlen_k);
  const Rows v = Head(p_.v, dtype_, b, s.k_row, h_k, p_.head_dim_v).read_rows(s.seqlen_k);
  std::vector<std::int64_t> keys;
  std::vector<Weight> weights;
  RowSums out(s.seqlen_q, p_.head_dim_v);
  std::vector<double> value(static_cast<std::size_t>(p_.head_dim_v));
  for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
    keys.clear();
    weights.clear();
    double maximum = c.sink();
    c.for_each_key(i, [&](std::int64_t j) {
      keys.push_back(j);
      weights.push_back(weight(c, i, j, q[i], k[j]));
      if (weights.back().visible) maximum = std::max(maximum, weights.back().score);
    });
    if (maximum == -kInfinity) continue;  // sees nothing: exact
    const auto error_of = [&](double score, double score_error) {
      return score_error + u_ * (3.0 * distance(score, maximum) + 4.0) + exp_;
    };
    std::int64_t terms = 1;
    WeightRange range(maximum);
    if (c.sink() != -kInfinity) range.add(c.sink(), 0.0);
    double sum = std::exp(c.sink() - maximum), sum_errors = sum == 0.0 ? 0.0 : sum * error_of(c.sink(), 0.0);
    for (const Weight& w : weights) {
      if (!w.visible) continue;
      range.add(w.score, w.score_error);
      sum += std::exp(w.score - maximum);
      sum_errors += std::exp(w.score - maximum) * error_of(w.score, range.wide() ? 0.0 : w.score_error);
      ++terms;
    }
    const double sum_relative = sum_errors / sum + sum_error(terms), lse = maximum + std::log(sum);
    if (ErrorBounds* bounds = find("softmax_lse")) {
      const std::size_t index = lse_row_index(c, i);
      bounds->limit[index] = bounds->sigma[index] =
          kSafety * (sum_relative + (range.wide() ? range.log_error() : 0.0) + u_ * (2.0 + 3.0 * std::abs(lse))) +
          tiny_;
    }
    std::fill(value.begin(), value.end(), 0.0);
    std::size_t added = c.sink() == -kInfinity ? 0 : 1;  // scores of the range before the next one
    for (std::size_t m = 0; m < keys.size(); ++m) {
      const std::int64_t j = keys[m];
      const Weight& w = weights[m];
      if (!w.visible) continue;
      const std::size_t n = added++;
      const double dropout = c.dropout(i, j);
      if (dropout == 0.0) continue;
      const double kept = dropout * c.value_scale, p = kept * std::exp(w.score - maximum) / sum;
      const double tiny = fp8() ? kFp8LeastWeight / sum : r_tiny_;
      const double score_error = range.wide() ? kept * range.error_of(n) : p * w.score_error;
      out.add(i, score_error + p * error_of(w.score, 0.0) + kept * tiny, p, v[j]);
      for (std::int64_t d = 0; d < p_.head_dim_v; ++d) value[static_cast<std::size_t>(d)] += p * v[j][d];
    }
    for (std::int64_t d = 0; d < p_.head_dim_v; ++d) {
      out.sums[static_cast<std::size_t>(i * p_.head_dim_v + d)].linear +=
          sum_relative * std::abs(value[static_cast<std::size_t>(d)]);
    }
  }
  finish_rows(find("out"), out, b, p_.seqlen_q, s.q_row, h, p_.num_heads_q);
}

void BoundsPass::backward_row(const HeadContext& c, std::int64_t i, const double* q, const double* out,
                              const double* dout, const Rows& k, const Rows& v, RowSums& dq, RowSums& dk, RowSums& dv) {
  const double lse = load_lse(p_.softmax_lse, c, i);
  if (lse == -kInfinity) return;
  const double dlse = p_.dlse.data ? load_lse(p_.dlse, c, i) : 0.0;
  const double delta = backends::reference::dot(out, dout, p_.head_dim_v);
  const double delta_error = sum_error(p_.head_dim_v) * dot_magnitude(out, dout, p_.head_dim_v) +
                             2.0 * u_ * (std::abs(dlse) + std::abs(delta));
  const double scale = numbers_.factors.softmax_scale;
  c.for_each_key(i, [&](std::int64_t j) {
    const Weight w = weight(c, i, j, q, k[j]);
    if (!w.visible) return;
    const double p = std::exp(w.score - lse), dropout = c.dropout(i, j);
    // Relative to p, of the one difference.
    const double p_error = exponential_error(w.score_error) + u_ * (3.0 * distance(w.score, lse) + 4.0) + exp_;
    double dp = 0.0, dp_error = 0.0;
    if (dropout != 0.0) {
      dp = dropout * backends::reference::dot(dout, v[j], p_.head_dim_v);
      dp_error = dropout * sum_error(p_.head_dim_v) * dot_magnitude(dout, v[j], p_.head_dim_v);
      dv.add(j, dropout * (p * p_error + r_tiny_), p * dropout, dout);
    }
    const double gradient = p * (dp - delta + dlse), ds = gradient * w.mod_slope;
    const double ds_error =
        std::abs(ds) * (p_error + 4.0 * u_) + std::abs(gradient) * w.mod_slope_error +
        (std::abs(w.mod_slope) + w.mod_slope_error) * p * (dp_error + delta_error + 2.0 * u_ * std::abs(dp));
    if (p_.dbias.data) {
      const std::int64_t position[4] = {c.b, c.h, i, c.sequence.leftpad + j};
      std::int64_t index = 0;
      for (int n = 0; n < 4; ++n) index = index * p_.dbias_shape[n] + (p_.dbias_shape[n] == 1 ? 0 : position[n]);
      add_shared("dbias", static_cast<std::size_t>(index), ds_error, ds);
    }
    const double gradient_error =
        std::abs(gradient) * (p_error + 4.0 * u_) + p * (dp_error + delta_error + 2.0 * u_ * std::abs(dp));
    for (const expression::LookUpDerivative& look_up : look_ups_)
      add_to_table(look_up, c, i, j, w, gradient, gradient_error);
    // A weight, or its product with softcap's slope, that is rounded among subnormals before it becomes a factor of ds
    // is off by r_tiny_.
    const double tiny = r_tiny_ * (1.0 + std::abs(dp - delta + dlse));
    // Both errors at once, too: where tanh is at its end the slope is nothing but its error.
    const double error = std::abs(scale) * ((w.slope + w.slope_error) * ds_error + std::abs(ds) * w.slope_error + tiny);
    dq.add(i, error, scale * w.slope * ds, k[j]);
    dk.add(j, error, scale * w.slope * ds, q);
  });
  if (c.sink() != -kInfinity) {
    const double p = std::exp(c.sink() - lse);
    add_shared("dsink", static_cast<std::size_t>(c.h),
               p * (delta_error + std::abs(dlse - delta) * (u_ * (3.0 * distance(c.sink(), lse) + 8.0) + exp_)),
               p * (dlse - delta));
  }
}

/// What one look-up of a position adds to its element's gradient, whose score has this one.
void BoundsPass::add_to_table(const expression::LookUpDerivative& look_up, const HeadContext& c, std::int64_t i,
                              std::int64_t j, const Weight& w, double gradient, double gradient_error) {
  const std::span tables(p_.tables, numbers_.functions.table_count);
  std::int64_t element = -1;
  operations::attention::LookUpPlaces(look_up, tables).find(c.b, c.h, i, j, 1, &element);
  if (element < 0) return;
  const auto slope_at = [&]<typename Real>(Real score) {
    using Input = expression::Input<Real>;
    const auto same = [](const std::int64_t& value) { return Input{.integers = &value, .uniform = true}; };
    const std::array inputs{Input{.reals = &score, .uniform = true}, same(c.b), same(c.h), same(i), same(j)};
    Real slope = 0;
    expression::Evaluator<Real>(look_up.slope, tables)(inputs, 1, &slope);
    return double{slope};
  };
  const double slope = slope_at(w.unmodified);
  double slope_error = 0.0;
  for (const double near : {w.unmodified - w.unmodified_error, w.unmodified + w.unmodified_error})
    slope_error = std::max(slope_error, std::abs(slope_at(near) - slope));
  if (dtype_ != DType::f64) {
    slope_error += 4.0 * std::abs(slope_at(static_cast<float>(w.unmodified)) - slope) + 16.0 * u_ * std::abs(slope);
  }
  add_shared(operations::attention::dtable_name(look_up.table), static_cast<std::size_t>(element),
             std::abs(gradient) * slope_error + (std::abs(slope) + slope_error) * gradient_error, gradient * slope);
}

void BoundsPass::backward_key_head(std::int64_t b, std::int64_t h_k) {
  const device::Sequence s = device::sequence_of(p_, b);
  const Rows k = Head(p_.k, dtype_, b, s.k_row, h_k, p_.head_dim).read_rows(s.seqlen_k);
  const Rows v = Head(p_.v, dtype_, b, s.k_row, h_k, p_.head_dim_v).read_rows(s.seqlen_k);
  RowSums dk(s.seqlen_k, p_.head_dim), dv(s.seqlen_k, p_.head_dim_v);
  const std::int64_t group = p_.num_heads_q / p_.num_heads_k;
  for (std::int64_t h = h_k * group; h < (h_k + 1) * group; ++h) {
    const HeadContext c(p_, numbers_, b, h);
    const Rows q = Head(p_.q, dtype_, b, s.q_row, h, p_.head_dim).read_rows(s.seqlen_q);
    const Rows out = Head(p_.out, dtype_, b, s.q_row, h, p_.head_dim_v).read_rows(s.seqlen_q);
    const Rows dout = Head(p_.dout, dtype_, b, s.q_row, h, p_.head_dim_v).read_rows(s.seqlen_q);
    RowSums dq(s.seqlen_q, p_.head_dim);
    for (std::int64_t i = 0; i < s.seqlen_q; ++i) backward_row(c, i, q[i], out[i], dout[i], k, v, dq, dk, dv);
    finish_rows(find("dq"), dq, b, p_.seqlen_q, s.q_row, h, p_.num_heads_q, kGradientRoundings);
  }
  finish_rows(find("dk"), dk, b, p_.seqlen_k, s.k_row, h_k, p_.num_heads_k, kGradientRoundings);
  finish_rows(find("dv"), dv, b, p_.seqlen_k, s.k_row, h_k, p_.num_heads_k);
}

}  // namespace

std::vector<ErrorBounds> error_bounds(const CallTensors& tensors, const std::vector<Output>& expected,
                                      double tanh_error) {
  const Problem& problem = tensors.problem();
  const bool forward = problem.operation == Operation::attention_forward;
  // The arguments must outlive the call made of them.
  const ForwardArguments forward_arguments = tensors.forward_arguments(expected);
  const BackwardArguments backward_arguments = tensors.backward_arguments(expected);
  const AttentionParams params = operations::attention::make_params(
      forward ? operations::attention::call_of(forward_arguments) : operations::attention::call_of(backward_arguments),
      problem);
  std::vector<ErrorBounds> bounds = no_errors(expected);
  BoundsPass pass(params, problem, tanh_error, bounds);
  const std::int64_t heads = forward ? params.num_heads_q : params.num_heads_k;
  const bool shared = params.dbias.data || params.dsink.data || problem.dtables != 0;
  core::parallel_for(params.batch_size * heads, shared ? 1 : core::num_threads(), [&](std::int64_t task, int) {
    forward ? pass.forward_head(task / heads, task % heads) : pass.backward_key_head(task / heads, task % heads);
  });
  return bounds;
}

}  // namespace tilewise::verify
