// Errors of scores, choices, weights and gradients, each along its formula.
#include "verify/route_token.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include "operations/elements.hpp"
#include "verify/rounding.hpp"

namespace tilewise::verify {
namespace {

using Numbers = RouteToken::Numbers;
using Ids = RouteToken::Ids;

constexpr double kFp32 = 0x1p-24;

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Different, and as close as errors may bring them together.
bool is_near_tie(const Inexact& a, const Inexact& b) {
  return a.value != b.value && std::abs(a.value - b.value) <= a.error + b.error;  // never of a NaN
}

/// In descending order: NaN first, ties by place.
Ids order_of(std::span<const Inexact> values) {
  Ids order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](std::int64_t a, std::int64_t b) {
    const double x = values[index(a)].value, y = values[index(b)].value;
    if (std::isnan(x) != std::isnan(y)) return std::isnan(x);
    return x > y || (!(x < y) && a < b);
  });
  return order;
}

/// Whether the first `count` of an order are so whatever the errors. `in_order`: and in this order.
bool is_clear(std::span<const Inexact> values, const Ids& order, std::int64_t count, bool in_order) {
  for (std::size_t i = 0; i < index(count); ++i)
    for (std::size_t j = in_order ? i + 1 : index(count); j < order.size(); ++j)
      if (is_near_tie(values[index(order[i])], values[index(order[j])])) return false;
  return true;
}

double scale_at(const Numbers& scale, std::int64_t id) { return scale.empty() ? 1.0 : scale[index(id)]; }

}  // namespace

RouteToken::RouteToken(const RouteProblem& problem, Numbers logits)
    : p_(problem),
      logits_(std::move(logits)),
      u_(unit_roundoff(operations::statistics_dtype(problem.dtype))),
      tiny_(smallest_rounding(operations::statistics_dtype(problem.dtype))) {}

/// The difference is rounded, and so is its product with the exponential's base; the rest is the instruction's. What
/// vanishes by far is 0 for everybody.
Inexact RouteToken::exponential(double difference) const {
  constexpr double kExponential = 16.0, kFar = -200.0;
  const double value = std::exp(difference);
  if (value == 0.0 || (difference < kFar && p_.dtype != DType::f64)) return {};
  return {value, value * u_ * (kExponential + 4.0 * std::abs(difference)) + (value == 1.0 ? 0.0 : tiny_)};
}

std::vector<Inexact> RouteToken::softmax(const Numbers& x) const {
  const double greatest = *std::ranges::max_element(x);
  std::vector<Inexact> result;
  double total = 0.0, error = 0.0;
  bool alone = true;
  for (const double value : x) {
    result.push_back(exponential(value - greatest));
    total += result.back().value;
    error += result.back().error;
    alone = alone && result.back().error == 0.0;
  }
  alone = alone && total == 1.0;  // all others vanish
  const double relative = error / total + u_ * (8.0 + 4.0 * std::sqrt(static_cast<double>(x.size())));
  for (Inexact& each : result) {
    each.value /= total;
    each.error = alone || each.value == 0.0 ? 0.0 : each.error / total + each.value * relative;
  }
  return result;
}

Inexact RouteToken::sigmoid(double x) const {
  constexpr double kSaturated = 20.0;
  const double value = 1.0 / (1.0 + std::exp(-x));
  if (x > kSaturated && p_.dtype != DType::f64) return {1.0, 0.0};
  const Inexact falling = exponential(-std::abs(x));
  if (falling.value == 0.0) return {x > 0 ? 1.0 : 0.0, 0.0};
  return {value, value * (falling.error / falling.value + 8.0 * u_) + tiny_};
}

Inexact RouteToken::sqrt_softplus(double x) const {
  if (x < 0) {
    const Inexact root = exponential(x / 2);
    if (root.value == 0.0) return {};
    const double value = std::sqrt(std::log1p(std::exp(x)));
    return {value, value * (2.0 * root.error / root.value + 16.0 * u_) + tiny_};
  }
  const double value = std::sqrt(x + std::log1p(std::exp(-x)));
  return {value, value == kInfinity ? 0.0 : 24.0 * u_ * value};
}

std::vector<Inexact> RouteToken::scores() const {
  if (p_.score == RouteScore::softmax) return softmax(logits_);
  std::vector<Inexact> result;
  for (const double x : logits_) {
    result.push_back(p_.score == RouteScore::sigmoid         ? sigmoid(x)
                     : p_.score == RouteScore::sqrt_softplus ? sqrt_softplus(x)
                                                             : Inexact{x, 0.0});
  }
  return result;
}

/// A number that all kernels have is added to in fp32 by all of them alike.
std::vector<Inexact> RouteToken::choices(const Numbers& bias) const {
  std::vector<Inexact> result = p_.chosen_by == RouteChosenBy::score ? scores() : std::vector<Inexact>{};
  if (result.empty())
    for (const double x : logits_) result.push_back({x, 0.0});
  for (std::size_t e = 0; e < result.size(); ++e) {
    Inexact& c = result[e];
    const double added = bias.empty() ? 0.0 : bias[e];
    const float rounded = static_cast<float>(c.value) + static_cast<float>(added);
    if (std::isfinite(rounded) && c.error > 0.0) {
      c.error += kFp32 * (std::abs(c.value) + std::abs(c.value + added));
      c.value += static_cast<double>(static_cast<float>(added));
    } else {
      c = {static_cast<double>(rounded), 0.0};
    }
  }
  if (p_.n_group == 1) return result;
  std::vector<Inexact> groups;
  for (std::int64_t g = 0; g < p_.n_group; ++g) groups.push_back(group_value(result, g));
  const Ids order = order_of(groups);
  const double outside = p_.outside_groups == RouteOutsideGroups::zero ? 0.0 : -kInfinity;
  const std::int64_t size = p_.num_experts / p_.n_group;
  for (std::size_t i = index(p_.topk_group); i < order.size(); ++i)
    std::fill_n(result.begin() + order[i] * size, size, Inexact{outside, 0.0});
  // Groups in doubt leave no expert beyond doubt.
  if (!is_clear(groups, order, p_.topk_group, false)) result.clear();
  return result;
}

Inexact RouteToken::group_value(const std::vector<Inexact>& choices, std::int64_t group) const {
  const std::int64_t size = p_.num_experts / p_.n_group;
  const std::span<const Inexact> members(choices.data() + group * size, index(size));
  const Ids order = order_of(members);
  const Inexact& best = members[index(order[0])];
  if (p_.group_value == RouteGroupValue::max || size == 1) return best;
  const Inexact& second = members[index(order[1])];
  const float sum = static_cast<float>(best.value) + static_cast<float>(second.value);
  const double error = best.error + second.error;
  if (error == 0.0 || !std::isfinite(sum)) return {static_cast<double>(sum), 0.0};
  return {best.value + second.value, error + kFp32 * std::abs(best.value + second.value)};
}

bool RouteToken::choice_is_clear(const Numbers& bias) const {
  const std::vector<Inexact> all = choices(bias);
  return !all.empty() && is_clear(all, order_of(all), p_.top_k, true);
}

Ids RouteToken::chosen(const Numbers& bias) const {
  Ids order = order_of(choices(bias));
  order.resize(std::min(order.size(), index(p_.top_k)));
  return order;
}

std::vector<Inexact> RouteToken::weights(const Ids& ids) const {
  Numbers chosen;
  for (const std::int64_t id : ids) chosen.push_back(logits_[index(id)]);
  if (p_.weigh == RouteWeigh::softmax_of_chosen) return softmax(chosen);
  std::vector<Inexact> result;
  if (p_.weigh == RouteWeigh::score) {
    const std::vector<Inexact> all = scores();
    for (const std::int64_t id : ids) result.push_back(all[index(id)]);
  } else {
    for (const double x : chosen) result.push_back(sigmoid(x));
  }
  return result;
}

Inexact RouteToken::divisor(const std::vector<Inexact>& weights) const {
  if (p_.normalise == RouteNormalise::no) return {1.0, 0.0};
  Inexact sum;
  double magnitude = 0.0;
  for (const Inexact& weight : weights) {
    sum.value += weight.value;
    sum.error += weight.error;
    magnitude += std::abs(weight.value);
  }
  const double rounding = u_ * (4.0 * std::sqrt(static_cast<double>(weights.size())) + 4.0) * magnitude;
  sum.error += rounding;
  if (p_.normalise == RouteNormalise::sum_plus_epsilon) return {sum.value + p_.epsilon, sum.error + u_ * p_.epsilon};
  return sum.value < p_.epsilon ? Inexact{p_.epsilon, u_ * p_.epsilon} : sum;
}

bool RouteToken::divisor_is_clear(const Ids& ids) const {
  constexpr double kCancelled = 1e-3, kClose = 1e-5, kLargest = 1e30;
  if (p_.normalise == RouteNormalise::no) return true;
  double sum = 0.0, magnitude = 0.0;
  for (const Inexact& weight : weights(ids)) sum += weight.value, magnitude += std::abs(weight.value);
  if (magnitude == 0.0 || !std::isfinite(magnitude)) return true;
  if (p_.normalise == RouteNormalise::at_least_epsilon) {
    if (std::abs(sum - p_.epsilon) < kClose * p_.epsilon) return false;
    if (sum < p_.epsilon) return magnitude / p_.epsilon < kLargest;
  } else {
    sum += p_.epsilon;
  }
  return std::abs(sum) > kCancelled * magnitude && std::abs(sum) > 1e3 * tiny_;
}

Numbers RouteToken::weight_errors(const Ids& ids, const Numbers& scale) const {
  const std::vector<Inexact> all = weights(ids);
  const Inexact by = divisor(all);
  Numbers errors;
  for (std::size_t j = 0; j < all.size(); ++j) {
    const double factor = std::abs(p_.routed_scaling_factor * scale_at(scale, ids[j]) / by.value);
    const double relative = 2.0 * by.error / std::abs(by.value) + 4.0 * u_;
    errors.push_back(factor * (all[j].error + std::abs(all[j].value) * relative));
  }
  return errors;
}

/// What the logit of a chosen expert does to its weight, softmax aside.
double RouteToken::slope(double logit, double weight) const {
  if (p_.weigh == RouteWeigh::softmax_of_chosen) return 1.0;
  if (p_.weigh == RouteWeigh::sigmoid_of_chosen || p_.score == RouteScore::sigmoid)
    return weight / (1.0 + std::exp(logit));
  if (p_.score != RouteScore::sqrt_softplus) return 1.0;
  return weight == 0.0 ? 0.0 : 1.0 / (1.0 + std::exp(-logit)) / (2.0 * weight);
}

namespace {

/// d of x for weights = softmax(x), in place.
void through_softmax(const std::vector<Inexact>& weights, std::vector<Inexact>& d, double u) {
  Inexact dot;
  double magnitude = 0.0;
  for (std::size_t i = 0; i < d.size(); ++i) {
    dot.value += weights[i].value * d[i].value;
    dot.error += weights[i].value * d[i].error + weights[i].error * std::abs(d[i].value);
    magnitude += std::abs(weights[i].value * d[i].value);
  }
  dot.error += u * (4.0 * std::sqrt(static_cast<double>(d.size())) + 8.0) * magnitude;
  for (std::size_t i = 0; i < d.size(); ++i) {
    const double difference = d[i].value - dot.value;
    const double sizes = std::abs(d[i].value) + std::abs(dot.value);
    d[i] = {weights[i].value * difference,
            weights[i].value * (d[i].error + dot.error + 4.0 * u * sizes) + weights[i].error * sizes};
  }
}

}  // namespace

Numbers RouteToken::gradient_errors(const Ids& ids, const Numbers& given, const Numbers& scale) const {
  std::vector<Inexact> result(logits_.size());
  if (!ids.empty()) {
    const std::vector<Inexact> all = weights(ids);
    const Inexact by = divisor(all);
    const bool constant = p_.normalise == RouteNormalise::no ||
                          (p_.normalise == RouteNormalise::at_least_epsilon && by.value == p_.epsilon);
    std::vector<Inexact> d;
    Inexact dot;
    for (std::size_t j = 0; j < ids.size(); ++j) {
      const double value = given[j] * p_.routed_scaling_factor * scale_at(scale, ids[j]);
      d.push_back({value, 4.0 * u_ * std::abs(value)});
      if (constant) continue;
      dot.value += value * all[j].value / by.value;
      const double relative = by.error / std::abs(by.value) + u_ * (16.0 + 4.0 * std::sqrt(ids.size()));
      dot.error += std::abs(value / by.value) * (all[j].error + std::abs(all[j].value) * relative);
    }
    for (Inexact& each : d) {
      const double sizes = std::abs(each.value) + std::abs(dot.value);
      const double error = each.error + dot.error + sizes * (4.0 * u_ + 2.0 * by.error / std::abs(by.value));
      each = {(each.value - dot.value) / by.value, error / std::abs(by.value)};
    }
    if (p_.weigh == RouteWeigh::softmax_of_chosen) through_softmax(all, d, u_);
    for (std::size_t j = 0; j < ids.size(); ++j) {
      const double logit = logits_[index(ids[j])], factor = slope(logit, all[j].value);
      const double relative = factor == 1.0 ? 0.0 : u_ * (48.0 + 16.0 * std::abs(logit));
      Inexact& of = result[index(ids[j])];
      of.value += d[j].value * factor;
      of.error += std::abs(factor) * (d[j].error + std::abs(d[j].value) * relative) +
                  (factor == 1.0 ? 0.0 : tiny_ * std::abs(d[j].value));
    }
    if (p_.weigh == RouteWeigh::score && p_.score == RouteScore::softmax) through_softmax(scores(), result, u_);
  }
  Numbers errors;
  for (const Inexact& each : result) errors.push_back(each.error);
  return errors;
}

}  // namespace tilewise::verify
