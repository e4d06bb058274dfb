// The choice of experts and their weights, a token at a time: by integers that order as the scores do, which settles
// NaN and ties.
#pragma once

#include <bit>
#include <functional>
#include <limits>

#include "backends/cpu/route/route_scores.hpp"

namespace tilewise::backends::cpu {

/// Orders as the numbers do, the two zeros alike and any NaN above all.
inline std::uint32_t key_of(float value) {
  if (value != value) return std::numeric_limits<std::uint32_t>::max();
  const auto bits = std::bit_cast<std::uint32_t>(value + 0.0f);  // -0 becomes 0
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

/// A candidate as one integer: what is greater comes first, and of ties the lower index.
inline std::uint64_t candidate(std::uint32_t key, std::int64_t index) {
  return std::uint64_t{key} << 32 | (0xFFFFFFFFu - static_cast<std::uint32_t>(index));
}
inline std::int64_t index_of(std::uint64_t candidate) {
  return 0xFFFFFFFF - static_cast<std::int64_t>(candidate & 0xFFFFFFFFu);
}

/// Leaves the `count` greatest of `size` candidates in front, in descending order.
inline void choose_greatest(std::uint64_t* candidates, std::int64_t size, std::int64_t count) {
  std::partial_sort(candidates, candidates + count, candidates + size, std::greater<>());
}

template <typename Real>
class RouteForward {
 public:
  static std::size_t scratch_bytes(const RouteParams& p) {
    return static_cast<std::size_t>(p.logits.columns) * (sizeof(std::uint64_t) + 5 * sizeof(Real)) +
           static_cast<std::size_t>(p.n_group) * sizeof(std::uint64_t);
  }
  RouteForward(const RouteParams& p, void* scratch) : p_(p), experts_(p.logits.columns), top_k_(p.topk_ids.columns) {
    candidates_ = static_cast<std::uint64_t*>(scratch);
    groups_ = candidates_ + experts_;
    logits_ = reinterpret_cast<Real*>(groups_ + p.n_group);
    scores_ = logits_ + experts_;
    chosen_logits_ = scores_ + experts_;
    chosen_scores_ = chosen_logits_ + experts_;
    choice_ = reinterpret_cast<float*>(chosen_scores_ + experts_);
  }

  void token(std::int64_t token) {
    load_logits(p_.logits, token, logits_);
    score(p_.score, logits_, experts_, scores_);
    choose();
    write(token);
  }

 private:
  /// Leaves the chosen experts in front of the candidates.
  void choose() {
    for (std::int64_t e = 0; e < experts_; ++e) {
      choice_[e] = static_cast<float>(p_.chosen_by == RouteChosenBy::logits ? logits_[e] : scores_[e]);
      if (p_.bias.data != nullptr)
        choice_[e] += static_cast<float>(operations::load_element(p_.bias.dtype, p_.bias.data, e * p_.bias.stride));
    }
    if (p_.n_group > 1) limit_to_groups();
    for (std::int64_t e = 0; e < experts_; ++e) candidates_[e] = candidate(key_of(choice_[e]), e);
    choose_greatest(candidates_, experts_, top_k_);
  }

  /// Experts outside of the groups that stay can win no more, or by 0.
  void limit_to_groups() {
    const std::int64_t size = experts_ / p_.n_group;
    for (std::int64_t g = 0; g < p_.n_group; ++g)
      groups_[g] = candidate(key_of(value_of_group(choice_ + g * size, size)), g);
    choose_greatest(groups_, p_.n_group, p_.topk_group);
    const bool zero = p_.outside_groups == RouteOutsideGroups::zero;
    const float outside = zero ? 0.0f : -std::numeric_limits<float>::infinity();
    for (std::int64_t i = p_.topk_group; i < p_.n_group; ++i)
      std::fill_n(choice_ + index_of(groups_[i]) * size, size, outside);
  }
  [[nodiscard]] float value_of_group(const float* members, std::int64_t size) const {
    float best = members[0], second = members[0];
    for (std::int64_t i = 1; i < size; ++i) {
      const bool greater = key_of(members[i]) > key_of(best);
      const float other = greater ? best : members[i];
      if (i == 1 || key_of(other) > key_of(second)) second = other;
      if (greater) best = members[i];
    }
    return p_.group_value == RouteGroupValue::sum_of_two && size > 1 ? best + second : best;
  }

  void write(std::int64_t token) {
    for (std::int64_t j = 0; j < top_k_; ++j) {
      chosen_logits_[j] = logits_[index_of(candidates_[j])];
      chosen_scores_[j] = scores_[index_of(candidates_[j])];
    }
    Real* const weights = scores_;  // which nobody needs any more
    weigh(p_, chosen_logits_, chosen_scores_, top_k_, weights);
    const Real sum = divisor(p_, weights, top_k_);
    for (std::int64_t j = 0; j < top_k_; ++j) {
      const std::int64_t id = index_of(candidates_[j]);
      operations::store_integer(p_.topk_ids.dtype, p_.topk_ids.data,
                                token * p_.topk_ids.row_stride + j * p_.topk_ids.column_stride, id);
      operations::store_element(p_.topk_weights.dtype, p_.topk_weights.data,
                                token * p_.topk_weights.row_stride + j * p_.topk_weights.column_stride,
                                static_cast<double>(weights[j] / sum * factor_of<Real>(p_, id)));
    }
  }

  const RouteParams& p_;
  std::int64_t experts_, top_k_;
  std::uint64_t *candidates_, *groups_;
  Real *logits_, *scores_, *chosen_logits_, *chosen_scores_;
  float* choice_;
};

}  // namespace tilewise::backends::cpu
