// The logits' gradients, a token at a time.
#pragma once

#include "backends/cpu/route/route_scores.hpp"

namespace tilewise::backends::cpu {

template <typename Real>
class RouteBackward {
 public:
  static std::size_t scratch_bytes(const RouteParams& p) {
    const auto experts = static_cast<std::size_t>(p.logits.columns),
               top_k = static_cast<std::size_t>(p.topk_ids.columns);
    return 3 * experts * sizeof(Real) + top_k * (4 * sizeof(Real) + sizeof(std::int64_t));
  }
  RouteBackward(const RouteParams& p, void* scratch) : p_(p), experts_(p.logits.columns) {
    const std::int64_t top_k = p.topk_ids.columns;
    ids_ = static_cast<std::int64_t*>(scratch);
    logits_ = reinterpret_cast<Real*>(ids_ + top_k);
    scores_ = logits_ + experts_;
    dlogits_ = scores_ + experts_;
    chosen_logits_ = dlogits_ + experts_;
    chosen_scores_ = chosen_logits_ + top_k;
    weights_ = chosen_scores_ + top_k;
    d_ = weights_ + top_k;
  }

  void token(std::int64_t token) {
    std::fill_n(dlogits_, experts_, Real{0});
    load_logits(p_.logits, token, logits_);
    if (p_.weigh == RouteWeigh::score) score(p_.score, logits_, experts_, scores_);
    gather(token);
    if (count_ > 0) through_weights();
    for (std::int64_t e = 0; e < experts_; ++e)
      operations::store_element(p_.dlogits.dtype, p_.dlogits.data,
                                token * p_.dlogits.row_stride + e * p_.dlogits.column_stride,
                                static_cast<double>(dlogits_[e]));
  }

 private:
  /// The chosen experts, and the gradients of their weights before the factors.
  void gather(std::int64_t token) {
    count_ = 0;
    for (std::int64_t j = 0; j < p_.topk_ids.columns; ++j) {
      const std::int64_t id = operations::load_integer(p_.topk_ids.dtype, p_.topk_ids.data,
                                                       token * p_.topk_ids.row_stride + j * p_.topk_ids.column_stride);
      if (id < 0 || id >= experts_) continue;
      const double d =
          operations::load_element(p_.dtopk_weights.dtype, p_.dtopk_weights.data,
                                   token * p_.dtopk_weights.row_stride + j * p_.dtopk_weights.column_stride);
      ids_[count_] = id;
      chosen_logits_[count_] = logits_[id];
      chosen_scores_[count_] = p_.weigh == RouteWeigh::score ? scores_[id] : Real{0};
      d_[count_] = static_cast<Real>(d) * factor_of<Real>(p_, id);
      ++count_;
    }
  }

  void through_weights() {
    weigh(p_, chosen_logits_, chosen_scores_, count_, weights_);
    through_normalisation();
    if (p_.weigh == RouteWeigh::softmax_of_chosen) through_softmax(weights_, d_, count_);
    for (std::int64_t j = 0; j < count_; ++j) dlogits_[ids_[j]] += d_[j] * slope(chosen_logits_[j], weights_[j]);
    const bool of_all = p_.weigh == RouteWeigh::score && p_.score == RouteScore::softmax;
    if (of_all) through_softmax(scores_, dlogits_, experts_);
  }
  void through_normalisation() {
    if (p_.normalise == RouteNormalise::no) return;
    const Real sum = divisor(p_, weights_, count_);
    Real dot = 0;
    const bool constant = p_.normalise == RouteNormalise::at_least_epsilon && sum == static_cast<Real>(p_.epsilon);
    for (std::int64_t j = 0; j < count_; ++j) dot += constant ? Real{0} : d_[j] * (weights_[j] / sum);
    for (std::int64_t j = 0; j < count_; ++j) d_[j] = (d_[j] - dot) / sum;
  }
  /// d of x for weights = softmax(x), in place.
  static void through_softmax(const Real* weights, Real* d, std::int64_t count) {
    Real dot = 0;
    for (std::int64_t i = 0; i < count; ++i) dot += weights[i] * d[i];
    for (std::int64_t i = 0; i < count; ++i) d[i] = weights[i] * (d[i] - dot);
  }
  /// What the logit of a chosen expert does to its weight, softmax aside. 1 - sigmoid(x) would lose what sigmoid(-x)
  /// has.
  [[nodiscard]] Real slope(Real logit, Real weight) const {
    if (p_.weigh == RouteWeigh::softmax_of_chosen) return 1;
    const bool sigmoids = p_.weigh == RouteWeigh::sigmoid_of_chosen || p_.score == RouteScore::sigmoid;
    if (sigmoids) return weight * sigmoid(-logit);
    if (p_.score != RouteScore::sqrt_softplus) return 1;
    return logit < kExponentialBelow<Real> ? weight / 2 : sigmoid(logit) / (2 * weight);
  }

  const RouteParams& p_;
  std::int64_t experts_, count_ = 0;
  std::int64_t* ids_;
  Real *logits_, *scores_, *dlogits_, *chosen_logits_, *chosen_scores_, *weights_, *d_;
};

}  // namespace tilewise::backends::cpu
