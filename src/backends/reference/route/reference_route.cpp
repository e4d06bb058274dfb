// docs/semantics.md in code: one token after the other.
#include "backends/reference/route/reference_route.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "backends/reference/matrix_access.hpp"
#include "core/parallel.hpp"
#include "operations/route/route.hpp"

namespace tilewise::backends {
namespace reference {
namespace {

using operations::route::RouteParams;

using Values = std::vector<double>;
using Indices = std::vector<std::int64_t>;

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

Values softmax(const Values& x) {
  const double greatest = *std::max_element(x.begin(), x.end());  // a NaN reaches the sum and stays
  Values weights(x.size());
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += weights[i] = std::exp(x[i] - greatest);
  for (double& weight : weights) weight /= sum;
  return weights;
}

Values scores_of(RouteScore score, const Values& logits) {
  if (score == RouteScore::softmax) return softmax(logits);
  Values scores = logits;
  for (double& s : scores) {
    if (score == RouteScore::sigmoid) s = sigmoid(s);
    if (score == RouteScore::sqrt_softplus) s = std::isnan(s) ? s : std::sqrt(softplus(s));
  }
  return scores;
}

/// The `count` greatest in descending order: NaN before all others, ties by place.
Indices greatest(const std::vector<float>& values, std::int64_t count) {
  Indices order(values.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    const float x = values[index(a)], y = values[index(b)];
    if (std::isnan(x) != std::isnan(y)) return std::isnan(x);
    return x > y || (!(x < y) && a < b);
  });
  order.resize(index(count));
  return order;
}

float value_of_group(const RouteParams& p, const float* first, std::int64_t size) {
  const std::vector<float> members(first, first + size);
  const Indices best = greatest(members, std::min<std::int64_t>(size, 2));
  float value = members[index(best[0])];
  if (p.group_value == RouteGroupValue::sum_of_two && size > 1) value += members[index(best[1])];
  return value;
}

Indices choose(const RouteParams& p, const Values& logits, const Values& scores) {
  std::vector<float> choice(logits.size());
  for (std::size_t e = 0; e < choice.size(); ++e) {
    choice[e] = static_cast<float>(p.chosen_by == RouteChosenBy::logits ? logits[e] : scores[e]);
    if (p.bias.data != nullptr) choice[e] += static_cast<float>(load(p.bias, static_cast<std::int64_t>(e)));
  }
  if (p.n_group > 1) {
    const std::int64_t size = p.logits.columns / p.n_group;
    std::vector<float> values;
    for (std::int64_t g = 0; g < p.n_group; ++g) values.push_back(value_of_group(p, choice.data() + g * size, size));
    std::vector<bool> stays(values.size());
    for (const std::int64_t g : greatest(values, p.topk_group)) stays[index(g)] = true;
    for (std::size_t e = 0; e < choice.size(); ++e) {
      if (stays[e / index(size)]) continue;
      choice[e] = p.outside_groups == RouteOutsideGroups::zero ? 0.0f : -std::numeric_limits<float>::infinity();
    }
  }
  return greatest(choice, p.topk_ids.columns);
}

/// What the chosen weigh before normalisation.
Values weigh(const RouteParams& p, const Values& logits, const Values& scores, const Indices& ids) {
  Values chosen;
  for (const std::int64_t id : ids)
    chosen.push_back(p.weigh == RouteWeigh::score ? scores[index(id)] : logits[index(id)]);
  if (p.weigh == RouteWeigh::softmax_of_chosen) return softmax(chosen);
  return p.weigh == RouteWeigh::sigmoid_of_chosen ? scores_of(RouteScore::sigmoid, chosen) : chosen;
}

/// What the weights are divided by. A NaN stays.
double divisor(const RouteParams& p, const Values& weights) {
  if (p.normalise == RouteNormalise::no) return 1;
  double sum = 0;
  for (const double weight : weights) sum += weight;
  if (p.normalise == RouteNormalise::sum_plus_epsilon) return sum + p.epsilon;
  return sum < p.epsilon ? p.epsilon : sum;
}

double factor_of(const RouteParams& p, std::int64_t id) {
  return p.routed_scaling_factor * (p.scale_of_expert.data == nullptr ? 1 : load(p.scale_of_expert, id));
}

Values logits_of(const RouteParams& p, std::int64_t token) {
  Values logits;
  for (std::int64_t e = 0; e < p.logits.columns; ++e) logits.push_back(load(p.logits, token, e));
  return logits;
}

void forward(const RouteParams& p, std::int64_t token) {
  const Values logits = logits_of(p, token), scores = scores_of(p.score, logits);
  const Indices ids = choose(p, logits, scores);
  const Values weights = weigh(p, logits, scores, ids);
  const double sum = divisor(p, weights);
  for (std::int64_t j = 0; j < p.topk_ids.columns; ++j) {
    const std::int64_t id = ids[index(j)];
    operations::store_integer(p.topk_ids.dtype, p.topk_ids.data,
                              token * p.topk_ids.row_stride + j * p.topk_ids.column_stride, id);
    store(p.topk_weights, token, j, weights[index(j)] / sum * factor_of(p, id));
  }
}

/// d of x for weights = softmax(x).
Values through_softmax(const Values& weights, const Values& d) {
  double dot = 0;
  for (std::size_t i = 0; i < d.size(); ++i) dot += weights[i] * d[i];
  Values result(d.size());
  for (std::size_t i = 0; i < d.size(); ++i) result[i] = weights[i] * (d[i] - dot);
  return result;
}

/// What the logit of a chosen expert does to its weight, softmax aside.
double slope(const RouteParams& p, double logit, double weight) {
  if (p.weigh == RouteWeigh::softmax_of_chosen) return 1;
  const bool sigmoids = p.weigh == RouteWeigh::sigmoid_of_chosen || p.score == RouteScore::sigmoid;
  if (sigmoids) return weight * sigmoid(-logit);
  if (p.score != RouteScore::sqrt_softplus) return 1;
  return weight == 0 ? 0 : sigmoid(logit) / (2 * weight);
}

/// Gradients of the weights before normalisation and scales.
Values through_normalisation(const RouteParams& p, const Values& weights, Values d) {
  const double sum = divisor(p, weights);
  double dot = 0;
  for (std::size_t j = 0; j < d.size(); ++j) dot += d[j] * weights[j] / sum;
  const bool constant =
      p.normalise == RouteNormalise::no || (p.normalise == RouteNormalise::at_least_epsilon && sum == p.epsilon);
  for (double& value : d) value = (value - (constant ? 0 : dot)) / sum;
  return d;
}

void backward(const RouteParams& p, std::int64_t token) {
  const Values logits = logits_of(p, token), scores = scores_of(p.score, logits);
  Indices ids;
  Values d;
  for (std::int64_t j = 0; j < p.topk_ids.columns; ++j) {
    const std::int64_t id = operations::load_integer(p.topk_ids.dtype, p.topk_ids.data,
                                                     token * p.topk_ids.row_stride + j * p.topk_ids.column_stride);
    if (id < 0 || id >= p.logits.columns) continue;
    ids.push_back(id);
    d.push_back(load(p.dtopk_weights, token, j) * factor_of(p, id));
  }
  Values dlogits(logits.size());
  if (!ids.empty()) {
    const Values weights = weigh(p, logits, scores, ids);
    d = through_normalisation(p, weights, d);
    if (p.weigh == RouteWeigh::softmax_of_chosen) d = through_softmax(weights, d);
    for (std::size_t j = 0; j < ids.size(); ++j)
      dlogits[index(ids[j])] += d[j] * slope(p, logits[index(ids[j])], weights[j]);
    const bool of_all = p.weigh == RouteWeigh::score && p.score == RouteScore::softmax;
    if (of_all) dlogits = through_softmax(scores, dlogits);
  }
  for (std::int64_t e = 0; e < p.logits.columns; ++e) store(p.dlogits, token, e, dlogits[index(e)]);
}

class RouteKernel final : public operations::route::Kernel {
 public:
  explicit RouteKernel(const RouteProblem& problem) : backward_(problem.pass == RoutePass::route_backward) {}
  [[nodiscard]] std::size_t workspace_size() const noexcept override { return 0; }
  [[nodiscard]] std::string schedule() const override { return "f64, one token at a time"; }
  void launch(const RouteParams& params, void*, void*) const override {
    backward_ ? route_backward(params) : route_forward(params);
  }

 private:
  bool backward_;
};

class RouteImplementation final : public operations::route::Implementation {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "reference"; }
  [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cpu; }
  [[nodiscard]] operations::route::FeatureSet supported() const noexcept override {
    using enum operations::route::Feature;
    return {forward,
            backward,
            f32,
            bf16,
            f16,
            f64,
            i64_ids,
            narrow_weights,
            softmax,
            sigmoid,
            sqrt_softplus,
            identity,
            by_logits,
            bias,
            groups,
            sum_of_two,
            zero_outside,
            softmax_of_chosen,
            sigmoid_of_chosen,
            sum_plus_epsilon,
            at_least_epsilon,
            routed_scaling_factor,
            scale_of_expert};
  }

  /// The order of magnitude, on one thread. Each cost is above what any faster implementation has in its place.
  [[nodiscard]] core::Verdict judge(const RouteProblem& problem, const core::DeviceDescription&) const override {
    constexpr double kCallUs = 20.0, kTokenUs = 1.0, kExpertUs = 0.2;
    const double experts = static_cast<double>(problem.num_experts);
    return core::Verdict::accept(kCallUs + static_cast<double>(problem.tokens) * (kTokenUs + kExpertUs * experts),
                                 std::make_unique<RouteKernel>(problem));
  }
};

}  // namespace

void route_forward(const RouteParams& p) {
  core::parallel_for(p.logits.rows, [&](std::int64_t token, int) { forward(p, token); });
}

void route_backward(const RouteParams& p) {
  core::parallel_for(p.logits.rows, [&](std::int64_t token, int) { backward(p, token); });
}

}  // namespace reference

const core::Implementation& reference_route_implementation() {
  static const reference::RouteImplementation implementation;
  return implementation;
}

}  // namespace tilewise::backends
